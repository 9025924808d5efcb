"""What the vLLM engines say of themselves, by worker: vLLM 0.25 to 0.32, as the tests' recordings show them."""

from __future__ import annotations

from grafana.page import Page, Section
from grafana.pages.engine_details import CACHING, HTTP, OPTIONAL, SETUP, WORKLOAD, hit_ratio
from grafana.panels import Column, Judged, PanelBuilder, Query, grid, heat, lines, percentiles, tile
from grafana.promql import Scope
from grafana.variables import ENGINE_JOB, ENGINE_MODEL, ENGINE_WORKER, ENGINES, worker_markers

TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
E2E = "vllm:e2e_request_latency_seconds"
QUEUE = "vllm:request_queue_time_seconds"
PREFILL = "vllm:request_prefill_time_seconds"
DECODE = "vllm:request_decode_time_seconds"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV = "vllm:kv_cache_usage_perc"
STEPS = "vllm:iteration_tokens_total"
"""A histogram despite its name: tokens per engine step. vLLM calls it so."""
FINISHED = "vllm:request_success_total"

KV_JUDGED = Judged(warn=0.85, bad=0.95)


TILES: list[PanelBuilder] = [
    tile(
        "Finished",
        ENGINES.rate(FINISHED),
        "reqps",
        "Requests the engines finished, per second: `vllm:request_success_total`.",
        no_value="no engines",
    ),
    tile(
        "Output tokens",
        ENGINES.rate("vllm:generation_tokens_total"),
        "count:tok/s",
        "Tokens generated per second: `vllm:generation_tokens_total`.",
        no_value="no engines",
    ),
    tile(
        "Running",
        ENGINES.total(RUNNING),
        "short",
        "Requests in the engines' batches: `vllm:num_requests_running`.",
        no_value="no engines",
    ),
    tile(
        "Waiting",
        ENGINES.total(WAITING),
        "short",
        "Requests that wait inside the engines: `vllm:num_requests_waiting`.",
        judged=Judged(warn=1, bad=32),
        no_value="no engines",
    ),
    tile(
        "KV cache, fullest",
        ENGINES.highest(KV),
        "percentunit",
        "Use of the fullest worker's KV cache: `vllm:kv_cache_usage_perc`.",
        judged=KV_JUDGED,
        decimals=1,
        no_value="no engines",
    ),
    tile(
        "Preemptions",
        ENGINES.rate("vllm:num_preemptions_total"),
        "cps",
        "Requests put back to wait for KV cache, per second; their work is done again: `vllm:num_preemptions_total`.",
        judged=Judged(warn=0.01, bad=1),
        no_value="no engines",
    ),
    tile(
        "Prefix cache hits",
        hit_ratio("prefix_cache"),
        "percentunit",
        "Share of prompt tokens found in the KV cache: `vllm:prefix_cache_hits_total`, "
        "`vllm:prefix_cache_queries_total`.",
        decimals=1,
    ),
    tile(
        "Tokens per step",
        ENGINES.mean(STEPS),
        "short",
        "Mean number of tokens an engine step works on, prompts included: `vllm:iteration_tokens_total`.",
        decimals=1,
    ),
]

TABLE: list[PanelBuilder] = [
    grid(
        "Engines",
        ("model", "worker"),
        [
            Column("Finished", ENGINES.rate(FINISHED, ("model", "worker")), "reqps"),
            Column("Output tokens", ENGINES.rate("vllm:generation_tokens_total", ("model", "worker")), "count:tok/s"),
            Column("Running", ENGINES.total(RUNNING, ("model", "worker")), "short"),
            Column("Waiting", ENGINES.total(WAITING, ("model", "worker")), "short"),
            Column("KV cache", ENGINES.highest(KV, ("model", "worker")), "percentunit", KV_JUDGED),
            Column("TTFT p95", ENGINES.quantile(0.95, TTFT, ("model", "worker")), "s"),
            Column("ITL p95", ENGINES.quantile(0.95, ITL, ("model", "worker")), "s"),
            Column("Prefix hits", hit_ratio("prefix_cache", ("model", "worker")), "percentunit"),
        ],
        "One row for each worker, as of now; click a name to see that worker alone: `vllm:request_success_total`, "
        "`vllm:generation_tokens_total`, `vllm:num_requests_running`, `vllm:num_requests_waiting`, "
        "`vllm:kv_cache_usage_perc`, `vllm:time_to_first_token_seconds`, `vllm:inter_token_latency_seconds`, "
        "`vllm:prefix_cache_hits_total`, `vllm:prefix_cache_queries_total`.",
        links={"model": "vllm-gateway-engines", "worker": "vllm-gateway-engines"},
    )
]

LATENCY: list[PanelBuilder] = [
    lines(
        "Time to first token",
        percentiles(ENGINES, TTFT),
        "s",
        "As the engine measures it, from its arrival there: `vllm:time_to_first_token_seconds`. The gateway's own, on "
        "the overview, has the gateway's queue and the way in it as well.",
    ),
    lines(
        "Inter-token latency",
        percentiles(ENGINES, ITL),
        "s",
        "Between two outputs: `vllm:inter_token_latency_seconds`.",
    ),
    lines(
        "Time per output token",
        percentiles(ENGINES, TPOT),
        "s",
        "Per request, after the first token: `vllm:request_time_per_output_token_seconds`.",
    ),
    lines(
        "Request latency", percentiles(ENGINES, E2E), "s", "Arrival to last token: `vllm:e2e_request_latency_seconds`."
    ),
    lines(
        "Time in the engine's queue",
        percentiles(ENGINES, QUEUE),
        "s",
        "Arrival to first run: `vllm:request_queue_time_seconds`.",
    ),
    lines(
        "Mean time by phase",
        [
            Query(ENGINES.mean(QUEUE), "queue"),
            Query(ENGINES.mean(PREFILL), "prefill"),
            Query(ENGINES.mean(DECODE), "decode"),
        ],
        "s",
        "Where a request's time goes: `vllm:request_queue_time_seconds`, `vllm:request_prefill_time_seconds`, "
        "`vllm:request_decode_time_seconds`.",
        stacked=True,
    ),
    heat("Time to first token, distribution", ENGINES.buckets(TTFT), "s", "`vllm:time_to_first_token_seconds`."),
    heat("Inter-token latency, distribution", ENGINES.buckets(ITL), "s", "`vllm:inter_token_latency_seconds`."),
    heat("Request latency, distribution", ENGINES.buckets(E2E), "s", "`vllm:e2e_request_latency_seconds`."),
]

THROUGHPUT: list[PanelBuilder] = [
    lines(
        "Output tokens by worker",
        [Query(ENGINES.rate("vllm:generation_tokens_total", ("worker",)), "{{worker}}")],
        "count:tok/s",
        "Tokens generated per second: `vllm:generation_tokens_total`.",
        stacked=True,
        no_value="no engines",
    ),
    lines(
        "Prompt tokens by source",
        [Query(ENGINES.rate("vllm:prompt_tokens_by_source_total", ("source",)), "{{source}}")],
        "count:tok/s",
        "Prompt tokens per second by where they came from; only local_compute costs prefill: "
        "`vllm:prompt_tokens_by_source_total`.",
        stacked=True,
        no_value="no engines",
    ),
    lines(
        "Finished by reason",
        [Query(ENGINES.rate(FINISHED, ("finished_reason",)), "{{finished_reason}}")],
        "reqps",
        "Requests finished per second: `vllm:request_success_total`. `abort`: the client left.",
        stacked=True,
        no_value="no engines",
    ),
    lines(
        "Tokens per step, spread",
        [
            Query(ENGINES.quantile(0.5, STEPS), "p50"),
            Query(ENGINES.quantile(0.95, STEPS), "p95"),
            Query(ENGINES.mean(STEPS), "mean"),
        ],
        "short",
        "How full the engine steps are, prompts included: `vllm:iteration_tokens_total`.",
    ),
    lines(
        "Engine steps",
        [Query(ENGINES.rate(f"{STEPS}_count", ("worker",)), "{{worker}}")],
        "cps",
        "Steps per second; zero while requests run is a hung engine: `vllm:iteration_tokens_total`.",
        no_value="no engines",
    ),
    lines(
        "Processor time of the API servers",
        [Query(ENGINES.rate("process_cpu_seconds_total", ("worker",)), "{{worker}}")],
        "percentunit",
        "Share of one processor that the worker's API server process uses; near 1 it holds up tokens: "
        "`process_cpu_seconds_total`.",
        no_value="no engines",
    ),
]

SATURATION: list[PanelBuilder] = [
    lines(
        "Running by worker",
        [Query(ENGINES.total(RUNNING, ("worker",)), "{{worker}}")],
        "short",
        "Requests in the batch: `vllm:num_requests_running`.",
        stacked=True,
        no_value="no engines",
    ),
    lines(
        "Waiting by reason",
        [Query(ENGINES.total("vllm:num_requests_waiting_by_reason", ("reason",)), "{{reason}}")],
        "short",
        "Requests that wait; capacity: the batch or the cache is full, deferred: they wait for something else. "
        "`vllm:num_requests_waiting_by_reason`.",
        stacked=True,
        no_value="no engines",
    ),
    lines(
        "KV cache by worker",
        [Query(ENGINES.highest(KV, ("worker",)), "{{worker}}")],
        "percentunit",
        "Used share of the KV cache: `vllm:kv_cache_usage_perc`.",
        judged=KV_JUDGED,
        at_most=1,
        no_value="no engines",
    ),
    lines(
        "Preemptions by worker",
        [Query(ENGINES.rate("vllm:num_preemptions_total", ("worker",)), "{{worker}}")],
        "cps",
        "Requests put back to wait for KV cache, per second: `vllm:num_preemptions_total`.",
        no_value="no engines",
    ),
    lines(
        "Turned away by the engine",
        [Query(ENGINES.rate("vllm:admission_rejections_total", ("reason",)), "{{reason}}")],
        "reqps",
        "Requests per second that vLLM itself refused, from 0.32 on and if limits are set: "
        "`vllm:admission_rejections_total`.",
        stacked=True,
        no_value="not reported by this vLLM",
    ),
    lines(
        "Preemptions per request",
        [Query(ENGINES.mean("vllm:request_num_preemptions"), "mean")],
        "short",
        "Mean over finished requests, vLLM 0.32 and later: `vllm:request_num_preemptions`.",
        no_value="not reported by this vLLM",
    ),
]

PAGE = Page(
    uid="vllm-gateway-engines",
    title="Engines (vLLM)",
    description="vLLM's own metrics of the workers, fetched by the supervisor: vLLM 0.25 or newer.",
    sections=(
        Section("", TILES),
        Section("Workers", TABLE),
        Section("Latency", LATENCY),
        Section("Throughput", THROUGHPUT),
        Section("Saturation", SATURATION),
        Section("Caching", CACHING),
        Section("Workload", WORKLOAD),
        Section("API servers", HTTP, collapsed=True),
        Section("Memory and work", SETUP, collapsed=True),
        Section("Optional features", OPTIONAL, collapsed=True),
    ),
    variables=(ENGINE_JOB, ENGINE_MODEL, ENGINE_WORKER),
    # The restarts are counted by the gateway, whose job is another.
    markers=worker_markers(Scope('model=~"$model", worker=~"$worker"')),
)
