"""The variables, scopes and markers that pages share."""

from __future__ import annotations

from grafana.page import Choice, Marker, Variable
from grafana.promql import RATE_INTERVAL, Scope, in_state

PRESENT = "gateway_requests_in_flight"
"""A metric that every gateway has from its start, for every model: what the gateway's variables are taken from."""
ENGINE_PRESENT = "vllm:num_requests_running"
"""The same of a vLLM worker."""

JOB = Variable("job", "Job", PRESENT, "Scrape job of the gateway's own metrics.", open_ended=False)
INSTANCE = Variable(
    "instance", "Gateway", f'{PRESENT}{{job=~"$job"}}', "Address of the gateway's admin port, as Prometheus has it."
)
MODEL = Variable(
    "model", "Model", f'{PRESENT}{{job=~"$job", instance=~"$instance"}}', "Configured model name; `other` is no model."
)
WORKER = Variable(
    "worker",
    "Worker",
    'gateway_worker_state{job=~"$job", instance=~"$instance", model=~"$model"}',
    "Name of a worker.",
)

ENGINE_JOB = Variable("job", "Job", ENGINE_PRESENT, "Scrape job of the workers' own metrics.", open_ended=False)
ENGINE_MODEL = Variable("model", "Model", f'{ENGINE_PRESENT}{{job=~"$job"}}', "Configured model name.")
ENGINE_WORKER = Variable("worker", "Worker", f'{ENGINE_PRESENT}{{job=~"$job", model=~"$model"}}', "Name of a worker.")

TTFT_TARGET = Choice(
    "ttft_target",
    "TTFT target",
    ("1.0", "0.25", "0.4", "0.6", "0.8", "1.5", "2.5", "5.0", "10.0"),
    "Seconds; each is a bucket boundary, so that the share within it is exact.",
)
ITL_TARGET = Choice(
    "itl_target",
    "ITL target",
    ("0.1", "0.02", "0.03", "0.05", "0.075", "0.15", "0.2", "0.5"),
    "Seconds; each is a bucket boundary, so that the share within it is exact.",
)

SITE = Scope('job=~"$job", instance=~"$instance"')
"""Everything of the chosen gateways."""
GATEWAY = Scope('job=~"$job", instance=~"$instance", model=~"$model"')
WORKERS = Scope('job=~"$job", instance=~"$instance", model=~"$model", worker=~"$worker"')
ENGINES = Scope('job=~"$job", model=~"$model", worker=~"$worker"')
"""The engines' own metrics: discovery gives them our names of model and worker, and the worker as their instance."""


def worker_markers(scope: Scope) -> tuple[Marker, ...]:
    """What happened to the workers of a scope, drawn into every panel of a page."""
    restarts = scope.increase("gateway_worker_restarts_total", ("worker", "reason"), over=RATE_INTERVAL)
    draining = scope.highest("gateway_worker_state", ("worker",), in_state("draining"))
    return (
        Marker("Worker restarts", f"{restarts} > 0", "{{worker}} restarted: {{reason}}", "red"),
        Marker("Worker drains", f"{draining} > 0", "{{worker}} is draining", "blue"),
    )
