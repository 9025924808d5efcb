# Every target sets up what it needs first; the light environment costs well under a second once it is there.
#   PYTHON=         interpreter (3.11 to 3.14) to build the light environment with
#   MODEL=          hub id or folder to serve; unset: the embedded SmolLM2-135M-Instruct
#   ENGINE_PYTHON=  interpreter of your own environment with vLLM; unset: one is built in the cache directory
# make loadtest takes the options of `python -m loadtest`, the rest through ARGS=; unset: what the scenario is made for
#   TARGET=         URL to ask; unset: http://127.0.0.1:8000
#   SCENARIO=       chat, multi-turn, rag, burst, ...; all of them: make loadtest ARGS=--list
#   RATE=           open loop: sessions a second (ARRIVALS=poisson, gamma:0.2, ...)
#   USERS=          closed loop: so many at once
#   DURATION=       30s, 5m, 1h
#   PROCESSES=      load processes
#   SLO=            thresholds, such as SLO="ttft_p95=500ms e2e_p99=10s"

VENV := .venv/bin
MODEL ?=
TARGET ?=
ROUNDS ?= 5
PYTEST := $(VENV)/python -m pytest
# What reaches the relay's hot modules is tested in both forms, as sources and compiled.
COMPILED := $(addprefix tests/,admission api chaos corpus fleet keys log metrics protocol proxy routing tracing)

ifdef PYTHON
export PYTHON
endif
ifdef ENGINE_PYTHON
export GATEWAY_ENGINE_PYTHON := $(ENGINE_PYTHON)
endif

.DEFAULT_GOAL := help
.PHONY: help bootstrap tools serve demo engine sdk-clients test check lint unit loadtest soak bench offline-bench docs dashboards pictures observe locks system-deps clean distclean

help: ## what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

bootstrap: ## the light environment in .venv (gateway, load tests; no engine)
	@for python in $${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do \
	  if "$$python" -c "" 2>/dev/null; then exec "$$python" -m gateway.setup.bootstrap; fi; \
	done; \
	echo "No Python runs as $${PYTHON:-python3}; vllm-gateway needs Python 3.11 to 3.14." >&2; \
	echo "To mend it: sudo apt-get install python3 python3-venv, or make PYTHON=/path/to/python3.12" >&2; exit 3

tools: bootstrap ## what tests and linters need, added to the light environment
	@$(VENV)/python -m gateway.setup.tools

serve: bootstrap ## serve a real model on http://127.0.0.1:8000/v1 (MODEL=hub id or folder, ENGINE_PYTHON=)
	@$(VENV)/gateway doctor --for serve
	@export GATEWAY_DOCTOR_SHOWN=1; exec $(VENV)/gateway up $(if $(MODEL),"$(MODEL)")

demo: bootstrap ## the same gateway over simulated workers: no engine, no weights
	@exec $(VENV)/gateway up -c deploy/examples/demo.yaml

engine: bootstrap ## build the engine's environment and the embedded model in your cache directory, start nothing
	@$(VENV)/python -m gateway.setup.prepare

test: tools lint engine sdk-clients ## everything that must hold: real processes, the real engine on the CPU
	$(PYTEST) -n 4 -m "not integration and not engine and not soak"
	$(PYTEST) -n 4 -p tests.compiled -m "not interpreted and not integration and not engine and not soak" $(COMPILED)
	$(PYTEST) -m "(integration or engine) and not soak"

check: tools lint unit ## lint, types, import contracts, unit tests: two minutes, no engine, no network

lint: tools ## ruff, mypy (Linux, macOS), import contracts, generated pages
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/mypy --platform darwin
	$(VENV)/lint-imports
	$(VENV)/python -m gateway.config.reference --check
	$(VENV)/python -m gateway.metrics.reference --check
	$(VENV)/python -m grafana --check

unit: tools
	$(PYTEST) -n 4 -m "not integration and not engine and not soak"

loadtest: bootstrap ## load on the running gateway (SCENARIO= RATE= USERS= DURATION= TARGET= PROCESSES= SLO= ARGS=)
	@exec $(VENV)/python -m loadtest $(SCENARIO) $(if $(TARGET),--target "$(TARGET)") $(if $(RATE),--rate "$(RATE)") \
	  $(if $(ARRIVALS),--arrivals "$(ARRIVALS)") $(if $(USERS),--users "$(USERS)") \
	  $(if $(DURATION),--duration "$(DURATION)") $(if $(PROCESSES),--processes "$(PROCESSES)") \
	  $(foreach slo,$(SLO),--slo "$(slo)") $(ARGS)

soak: tools ## long and repeated runs, up to an hour
	$(PYTEST) -m soak --timeout 3600

bench: bootstrap .build/bench-peers/complete ## what a relayed token costs, beside nginx, vllm-router and smg (ROUNDS=5: about 10 minutes)
	@$(VENV)/python -m gateway.setup.system nginx
	@mkdir -p results
	$(VENV)/python -m loadtest.bench.relay_cost --many --rounds $(ROUNDS) --json results/relay-cost.json
	$(VENV)/python -m loadtest.bench.large_bodies
	$(VENV)/python -m loadtest.bench.measurement --json results/measurement.json
	$(VENV)/python -m loadtest.bench.log_clock
	$(VENV)/python -m loadtest.bench.scrape_delay

offline-bench: bootstrap ## transformers against vLLM at the same offline work (MODEL= ARGS=; 2 to 4 minutes on a CPU)
	@engine=$$($(VENV)/python -m gateway.setup.prepare --paths) && \
	  exec $(VENV)/python -m loadtest.offline --engine "$$engine" $(if $(MODEL),--model "$(MODEL)") $(ARGS)

.build/bench-peers/complete: requirements/bench-peers.txt
	rm -rf .build/bench-peers
	$(VENV)/python -m venv .build/bench-peers
	.build/bench-peers/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r $<
	touch $@

docs: bootstrap ## write docs/configuration.md and docs/metrics.md anew from the code
	$(VENV)/python -m gateway.config.reference
	$(VENV)/python -m gateway.metrics.reference

sdk-clients: tools ## the client SDKs that `make test` drives, Python and Node, in .build
	@$(VENV)/python -m tests.sdk.environment

observe: bootstrap ## Prometheus (and Grafana, where installed) with our dashboards and alerts beside the running gateway
	@exec $(VENV)/python -m grafana.observe $(if $(ADMIN),--admin "$(ADMIN)")

dashboards: tools ## write grafana/dashboards anew from grafana/pages
	@$(VENV)/python -m grafana

pictures: tools ## the pictures in docs/images, from running programs: console, load-test report, dashboards
	@$(VENV)/python -m tests.control.web.picture docs/images/console.png
	@$(VENV)/python -m tests.loadtest.report.picture docs/images/loadtest-report.png
	@$(VENV)/python -m tests.grafana.pictures docs/images

locks: bootstrap ## maintainers: renew every requirements lock (needs uv, see requirements/lock.py)
	$(VENV)/python requirements/lock.py

system-deps: bootstrap ## system programs that tests use (Prometheus, nginx, Chromium), without root where possible
	@$(VENV)/python -m gateway.setup.system

clean: ## remove what tests and tools leave behind
	rm -rf .build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache results dist
	find gateway loadtest tests -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## also the light environment and unpacked system programs; engines stay in your cache directory
	rm -rf .venv .system
