"""
Every metric of the project: name, type, labels, buckets, meaning. Code that counts refers to these objects, and
`docs/metrics.md` is generated from them, so that a metric cannot exist without its description.

Label values come from closed sets: configured names, enumerations, or `other`. No client-chosen string becomes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OTHER = "other"
"""The label value of everything outside a closed set."""
ANONYMOUS = "anonymous"
"""The tenant of requests that need no key."""
TENANTS_WITH_A_NAME = 256
"""So many tenants of one gateway process have series of their own; further ones are `other` together."""

TIME_TO_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8),
    *(1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
"""From what a cached prompt takes to minutes in a queue. Every likely target (0.2, 0.5, 1, 2 s) is a bound: only
there can the share of requests within a target be read off exactly."""
INTER_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Fine below 10 ms, where large GPUs decode; the usual targets (25, 30, 50, 100, 200 ms) are bounds."""
DURATION_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0),
    *(10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0),
)
QUEUE_WAIT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""From no wait at all to minutes."""
DEFAULT_PRIORITY = "default"
"""The one priority there is: queues are first come, first served."""
OVERHEAD_BUCKETS = (
    *(0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5),
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0),
)
RESTART_REASONS_WHILE_SERVING = ("exited", "hung", "unhealthy", "requested")
"""Exposed as 0 from the start, so that the first restart is an increase."""
RESTART_REASONS_AT_START = (
    *("bad_flag", "bad_model", "bad_option", "cannot_launch", "context_too_long", "cpu_binding", "cpu_memory"),
    *("disk_full", "gated_model", "gpu_busy", "gpu_fault", "internal_port", "kv_cache", "no_engine", "no_model"),
    *(
        "killed",
        "no_adapter",
        "no_network",
        "no_weights",
        "out_of_gpu_memory",
        "out_of_memory",
        "port_in_use",
        "quantization",
        "refused",
    ),
    *("remote_code", "start_failed", "start_timeout", "tensor_parallel", "too_few_gpus", "unsupported_feature"),
    *("unsupported_model", "warm_up", "wrong_name"),
)
START_BUCKETS = (1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0)


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """
    One metric family. Each exists once and equals itself alone: hashing all its buckets with every series would be a
    third of the time that adding boards up takes.

    Args:
        name: As exposed (counters with `_total`).
        kind: Exposition type.
        labels: Label names, in order.
        meaning: One or two sentences for the person who reads a dashboard.
        buckets: Upper bounds of a histogram, inclusive, without `+Inf`.
        merge: How values of several gateway processes become one.
        shown_by: Number of leading labels that form a group; a group is exposed with all its series once one of them
            has counted anything. 0: always exposed. Keeps the product of large label sets out of every scrape.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()
    merge: Literal["sum", "max"] = "sum"
    shown_by: int = 0

    @property
    def width(self) -> int:
        """Cells one series takes: a histogram has one per bucket, one for `+Inf`, one for the sum."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1


REQUESTS = Metric(
    "gateway_requests_total",
    "counter",
    ("model", "endpoint", "outcome"),
    "Exchanges that ended, by outcome. Only `ok` is a success.",
    shown_by=2,
)
IN_FLIGHT = Metric(
    "gateway_requests_in_flight",
    "gauge",
    ("model",),
    "Exchanges that have begun and are not counted as ended (at most 0.05 s after their end). "
    "Zero at idle; anything else then is a leak.",
)
DURATION = Metric(
    "gateway_request_duration_seconds",
    "histogram",
    ("model", "endpoint"),
    "From the first byte of the request to the end of the exchange, whatever its outcome.",
    buckets=DURATION_BUCKETS,
    shown_by=2,
)
TIME_TO_FIRST_TOKEN = Metric(
    "gateway_time_to_first_token_seconds",
    "histogram",
    ("model",),
    "Streams: from the complete request body to the first token-bearing event written to the client, queue included.",
    buckets=TIME_TO_FIRST_TOKEN_BUCKETS,
)
INTER_TOKEN_LATENCY = Metric(
    "gateway_inter_token_latency_seconds",
    "histogram",
    ("model",),
    "Streams: gap between two token-bearing events.",
    buckets=INTER_TOKEN_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "gateway_time_per_output_token_seconds",
    "histogram",
    ("model",),
    "Streams: (last − first token-bearing event) / (output tokens − 1), with the tokens of the worker's own usage.",
    buckets=INTER_TOKEN_BUCKETS,
)
PROMPT_TOKENS = Metric(
    "gateway_prompt_tokens_total", "counter", ("model",), "Prompt tokens, as reported by the workers' usage."
)
CACHED_PROMPT_TOKENS = Metric(
    "gateway_cached_prompt_tokens_total",
    "counter",
    ("model",),
    "Prompt tokens that a worker found in its prefix cache (part of the prompt tokens), where it reports them.",
)
OUTPUT_TOKENS = Metric(
    "gateway_output_tokens_total", "counter", ("model",), "Generated tokens, as reported by the workers' usage."
)
UNCONFIRMED_TOKEN_EVENTS = Metric(
    "gateway_unconfirmed_token_events_total",
    "counter",
    ("model",),
    "Token-bearing events of streams whose usage never came, because the client left or the worker died. Each has held "
    "a token or more, none of which is in `gateway_output_tokens_total`.",
)
OVERHEAD = Metric(
    "gateway_overhead_seconds",
    "histogram",
    ("stage",),
    "Time an exchange spent in the gateway, by stage. `admission` has the wait for a worker in it, which is load, not "
    "the gateway's doing.",
    buckets=OVERHEAD_BUCKETS,
)
QUEUE_DEPTH = Metric(
    "gateway_queue_depth",
    "gauge",
    ("model", "priority"),
    "Requests that wait for a worker. Zero at idle.",
)
QUEUE_WAIT = Metric(
    "gateway_queue_wait_seconds",
    "histogram",
    ("model", "priority"),
    "How long requests waited for a worker, those that did not have to included (0). A request that is tried again "
    "counts once, with all its waits.",
    buckets=QUEUE_WAIT_BUCKETS,
)
REJECTIONS = Metric(
    "gateway_rejections_total",
    "counter",
    ("model", "reason"),
    "Exchanges with outcome `rejected`, by reason: load that was turned away on purpose.",
)
ROUTING_DECISIONS = Metric(
    "gateway_routing_decisions_total",
    "counter",
    ("model", "policy", "reason"),
    "Exchanges by the policy that chose their last worker and why it won.",
)
RETRIES = Metric(
    "gateway_retries_total",
    "counter",
    ("model", "reason"),
    "Further attempts, always before the first byte of an answer, by what went wrong with the one before.",
)
DISCONNECTS = Metric(
    "gateway_disconnects_total", "counter", ("model", "phase"), "Clients that left, by what their exchange was doing."
)
WORKER_IN_FLIGHT = Metric(
    "gateway_worker_in_flight",
    "gauge",
    ("model", "worker"),
    "Attempts the gateway has in flight on a worker. Zero at idle.",
)
WORKER_CIRCUIT_STATE = Metric(
    "gateway_worker_circuit_state",
    "gauge",
    ("model", "worker"),
    "Circuit breaker of a worker: 0 closed, 1 half open, 2 open; the worst of all gateway processes.",
    merge="max",
)
TENANT_REQUESTS = Metric(
    "gateway_tenant_requests_total",
    "counter",
    ("tenant", "outcome"),
    "Exchanges that ended, by the name of their API key and outcome; `anonymous` without keys. With the requests that "
    "were refused for their key, which are nobody's, these are all of `gateway_requests_total`.",
)
TENANT_PROMPT_TOKENS = Metric(
    "gateway_tenant_prompt_tokens_total",
    "counter",
    ("tenant",),
    "Prompt tokens, as reported by the workers' usage, by tenant.",
)
TENANT_OUTPUT_TOKENS = Metric(
    "gateway_tenant_output_tokens_total",
    "counter",
    ("tenant",),
    "Generated tokens, as reported by the workers' usage, by tenant.",
)
TENANT_IN_FLIGHT = Metric(
    "gateway_tenant_requests_in_flight",
    "gauge",
    ("tenant",),
    "Exchanges of a tenant that have begun and are not counted as ended (0.05 s after it at most). Zero at idle.",
)
WORKER_STATE = Metric(
    "gateway_worker_state",
    "gauge",
    ("model", "worker", "state"),
    "1 for the state a worker is in, 0 for the others.",
)
WORKER_RESTARTS = Metric(
    "gateway_worker_restarts_total",
    "counter",
    ("model", "worker", "reason"),
    "Times a worker was started again, by what ended it.",
)
WORKER_START_DURATION = Metric(
    "gateway_worker_start_duration_seconds",
    "histogram",
    ("model",),
    "From the spawn of a worker to its first READY.",
    buckets=START_BUCKETS,
)
WORKER_PROGRESS_AGE = Metric(
    "gateway_worker_progress_age_seconds",
    "gauge",
    ("model", "worker"),
    "Seconds since the last byte on any stream of a worker that has requests in flight; 0 when it has none.",
)

WORKER_COST = Metric(
    "gateway_worker_cost_total",
    "counter",
    ("model", "worker"),
    "What a worker has cost while it had a process, by `models.NAME.price_per_gpu_hour` (times the GPUs it spans) or "
    "`price_per_worker_hour`, in their currency. Only workers of models with a price.",
)
UPSTREAM_CONNECTIONS = Metric(
    "gateway_upstream_connections",
    "gauge",
    ("model", "worker", "state"),
    "Connections the gateway has open to a worker, as of a second ago: `in_use` by exchanges, `idle` for later ones. "
    "At idle none is in use.",
)
LOG_LINES_DROPPED = Metric(
    "gateway_log_lines_dropped_total",
    "counter",
    (),
    "Log lines lost because nobody read standard error, or it could not be written. Requests never wait for the log.",
)
TRACE_SPANS_DROPPED = Metric(
    "gateway_trace_spans_dropped_total",
    "counter",
    (),
    "Spans that did not reach the collector. Requests never wait for it.",
)
LOST_REQUESTS = Metric(
    "gateway_lost_requests_total",
    "counter",
    ("model",),
    "Requests that a gateway process had in hand when it died: they broke off, and have no outcome in "
    "`gateway_requests_total`. The two together are all requests that were begun and have ended.",
)
PROCESSES_SERVING = Metric(
    "gateway_processes_serving",
    "gauge",
    (),
    "Gateway processes that accept connections; fewer than `processes`: one has died and the next one starts.",
)
PROCESS_CRASHES = Metric(
    "gateway_process_crashes_total", "counter", (), "Times a gateway process ended although nobody had asked it to."
)
GPU_MEMORY_USED = Metric(
    "gateway_gpu_memory_used_bytes",
    "gauge",
    ("gpu",),
    "Memory in use on a GPU, by whomever, the driver included; `gpu` is the index in PCI bus order. No GPU: no series.",
)
GPU_MEMORY_TOTAL = Metric("gateway_gpu_memory_total_bytes", "gauge", ("gpu",), "Memory of a GPU.")
GPU_UTILIZATION = Metric(
    "gateway_gpu_utilization_ratio",
    "gauge",
    ("gpu",),
    "Share of the driver's last sample period in which some kernel ran, 0 to 1; says nothing of how much of the GPU it "
    "filled.",
)
GPU_TEMPERATURE = Metric("gateway_gpu_temperature_celsius", "gauge", ("gpu",), "Temperature of a GPU's core.")
GPU_POWER = Metric("gateway_gpu_power_watts", "gauge", ("gpu",), "Power a GPU draws.")
GPU_INFO = Metric("gateway_gpu_info", "gauge", ("gpu", "uuid", "name"), "1 for each GPU: what it is.")
GPU_LEASE = Metric(
    "gateway_gpu_lease",
    "gauge",
    ("gpu", "model", "worker"),
    "1 for each worker that holds a GPU; joins the worker to the other GPU metrics. Several workers may share one.",
)

COUNTED_BY_GATEWAY_PROCESSES = (
    REQUESTS,
    IN_FLIGHT,
    DURATION,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    TIME_PER_OUTPUT_TOKEN,
    PROMPT_TOKENS,
    CACHED_PROMPT_TOKENS,
    OUTPUT_TOKENS,
    UNCONFIRMED_TOKEN_EVENTS,
    OVERHEAD,
    QUEUE_DEPTH,
    QUEUE_WAIT,
    REJECTIONS,
    ROUTING_DECISIONS,
    RETRIES,
    DISCONNECTS,
    WORKER_IN_FLIGHT,
    WORKER_CIRCUIT_STATE,
    UPSTREAM_CONNECTIONS,
    LOG_LINES_DROPPED,
    TRACE_SPANS_DROPPED,
)
COUNTED_BY_TENANT = (TENANT_REQUESTS, TENANT_PROMPT_TOKENS, TENANT_OUTPUT_TOKENS, TENANT_IN_FLIGHT)
KNOWN_TO_THE_SUPERVISOR = (
    WORKER_STATE,
    WORKER_RESTARTS,
    WORKER_START_DURATION,
    WORKER_PROGRESS_AGE,
    WORKER_COST,
    LOST_REQUESTS,
    PROCESSES_SERVING,
    PROCESS_CRASHES,
    GPU_MEMORY_USED,
    GPU_MEMORY_TOTAL,
    GPU_UTILIZATION,
    GPU_TEMPERATURE,
    GPU_POWER,
    GPU_INFO,
    GPU_LEASE,
)
CATALOGUE = COUNTED_BY_GATEWAY_PROCESSES + COUNTED_BY_TENANT + KNOWN_TO_THE_SUPERVISOR
