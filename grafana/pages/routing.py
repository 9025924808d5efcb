"""Where requests went and why, and what was turned away."""

from __future__ import annotations

from grafana.page import Page, Section
from grafana.panels import Judged, PanelBuilder, Query, heat, lines, percentiles, tile, timeline
from grafana.promql import ratio
from grafana.variables import GATEWAY, INSTANCE, JOB, MODEL, SITE, WORKER, WORKERS, worker_markers

DECISIONS = "gateway_routing_decisions_total"
IN_FLIGHT = "gateway_worker_in_flight"
RETRIES = "gateway_retries_total"
WAIT = "gateway_queue_wait_seconds"

CIRCUIT = {0: ("closed", "green"), 1: ("half open", "orange"), 2: ("open", "red")}

TILES: list[PanelBuilder] = [
    tile(
        "Decisions",
        GATEWAY.rate(DECISIONS),
        "reqps",
        "Exchanges per second that were given a worker: `gateway_routing_decisions_total`.",
        width=3,
    ),
    tile(
        "Retried",
        ratio(GATEWAY.rate(RETRIES), GATEWAY.rate(DECISIONS)),
        "percentunit",
        "Further attempts per routed exchange, always before the first byte of an answer: `gateway_retries_total`, "
        "`gateway_routing_decisions_total`.",
        judged=Judged(warn=0.01, bad=0.1),
        decimals=2,
        width=3,
    ),
    tile(
        "Waiting",
        GATEWAY.total("gateway_queue_depth"),
        "short",
        "Requests that wait for a worker: `gateway_queue_depth`.",
        no_value="no gateway",
        width=3,
    ),
    tile(
        "Wait p95",
        GATEWAY.quantile(0.95, WAIT),
        "s",
        "95 of 100 requests waited at most this long for a worker: `gateway_queue_wait_seconds`.",
        width=3,
    ),
    tile(
        "Turned away",
        ratio(GATEWAY.rate("gateway_rejections_total"), GATEWAY.rate("gateway_requests_total")),
        "percentunit",
        "Share of exchanges rejected on purpose: `gateway_rejections_total`, `gateway_requests_total`.",
        judged=Judged(warn=0.01, bad=0.1),
        decimals=2,
        width=3,
    ),
    tile(
        "Circuits not closed",
        f"count({WORKERS.series('gateway_worker_circuit_state')} > 0) or vector(0)",
        "short",
        "Workers that get no requests, or one to try, because attempts on them failed: `gateway_worker_circuit_state`.",
        judged=Judged(warn=1, bad=2),
        width=3,
    ),
    tile(
        "Prompt tokens from cache",
        ratio(GATEWAY.rate("gateway_cached_prompt_tokens_total"), GATEWAY.rate("gateway_prompt_tokens_total")),
        "percentunit",
        "Share of prompt tokens that the chosen worker held in its prefix cache: `gateway_cached_prompt_tokens_total`, "
        "`gateway_prompt_tokens_total`.",
        decimals=1,
        width=3,
    ),
    tile(
        "Imbalance",
        "max(" + ratio(WORKERS.highest(IN_FLIGHT, ("model",)), f"avg by (model) ({WORKERS.series(IN_FLIGHT)})") + ")",
        "short",
        "Attempts in flight on a model's busiest worker by the mean of its workers, for the most uneven model: "
        "`gateway_worker_in_flight`. 1 is even.",
        decimals=2,
        width=3,
    ),
]

ROUTING: list[PanelBuilder] = [
    lines(
        "Decisions by reason",
        [Query(GATEWAY.rate(DECISIONS, ("reason",)) + " > 0", "{{reason}}")],
        "reqps",
        "Exchanges per second by why their worker won: `gateway_routing_decisions_total`.",
        stacked=True,
    ),
    lines(
        "Decisions by policy",
        [Query(GATEWAY.rate(DECISIONS, ("policy",)) + " > 0", "{{policy}}")],
        "reqps",
        "Exchanges per second by the policy that chose: `gateway_routing_decisions_total`.",
        stacked=True,
    ),
    lines(
        "In flight by worker",
        [Query(WORKERS.total(IN_FLIGHT, ("worker",)), "{{worker}}")],
        "short",
        "Attempts the gateway has in flight on each worker: `gateway_worker_in_flight`.",
        stacked=True,
        no_value="no workers",
    ),
    timeline(
        "Circuit breakers",
        Query(WORKERS.highest("gateway_worker_circuit_state", ("model", "worker")), "{{worker}}"),
        CIRCUIT,
        "State of each worker's circuit breaker, the worst of all gateway processes: `gateway_worker_circuit_state`.",
        width=16,
    ),
    lines(
        "Routing time",
        [
            Query(SITE.quantile(0.5, "gateway_overhead_seconds", where='stage="routing"'), "p50"),
            Query(SITE.quantile(0.99, "gateway_overhead_seconds", where='stage="routing"'), "p99"),
            Query(SITE.mean("gateway_overhead_seconds", where='stage="routing"'), "mean"),
        ],
        "s",
        "Time taken to choose a worker: `gateway_overhead_seconds`.",
    ),
]

ADMISSION: list[PanelBuilder] = [
    lines(
        "Waiting for a worker",
        [Query(GATEWAY.total("gateway_queue_depth", ("model",)), "{{model}}")],
        "short",
        "Requests that wait because every worker has as many as it may have: `gateway_queue_depth`.",
        stacked=True,
        no_value="no gateway",
    ),
    lines(
        "Wait for a worker",
        percentiles(GATEWAY, WAIT),
        "s",
        "Of all requests, those that did not have to wait included: `gateway_queue_wait_seconds`.",
    ),
    lines(
        "Wait p95 by model",
        [Query(GATEWAY.quantile(0.95, WAIT, ("model",)), "{{model}}")],
        "s",
        "95 of 100 requests waited at most this long: `gateway_queue_wait_seconds`.",
    ),
    lines(
        "Turned away by reason",
        [Query(GATEWAY.rate("gateway_rejections_total", ("reason",)) + " > 0", "{{reason}}")],
        "reqps",
        "Load rejected on purpose, per second: `gateway_rejections_total`.",
        stacked=True,
        no_value="none",
    ),
    heat(
        "Wait for a worker, distribution",
        GATEWAY.buckets(WAIT),
        "s",
        "Requests per bucket and step: `gateway_queue_wait_seconds`.",
    ),
    lines(
        "Clients that left, by phase",
        [Query(GATEWAY.rate("gateway_disconnects_total", ("phase",)) + " > 0", "{{phase}}")],
        "reqps",
        "Departures per second by what the exchange was doing: `gateway_disconnects_total`.",
        stacked=True,
        no_value="none",
    ),
]

ATTEMPTS: list[PanelBuilder] = [
    lines(
        "Further attempts by reason",
        [Query(GATEWAY.rate(RETRIES, ("reason",)) + " > 0", "{{reason}}")],
        "reqps",
        "Attempts after the first, per second, by what went wrong with the one before: `gateway_retries_total`.",
        stacked=True,
        no_value="none",
    ),
    lines(
        "Connections to workers",
        [Query(WORKERS.total("gateway_upstream_connections", ("state",)), "{{state}}")],
        "short",
        "Open connections, in use by exchanges or idle for later ones: `gateway_upstream_connections`.",
        stacked=True,
        no_value="no workers",
    ),
    lines(
        "Connecting",
        [
            Query(SITE.quantile(0.5, "gateway_overhead_seconds", where='stage="connect"'), "p50"),
            Query(SITE.quantile(0.99, "gateway_overhead_seconds", where='stage="connect"'), "p99"),
        ],
        "s",
        "Time to a connection to the worker: `gateway_overhead_seconds`.",
    ),
]

PAGE = Page(
    uid="vllm-gateway-routing",
    title="Routing and admission",
    description="Which worker gets a request and why, what is tried again, and what is turned away.",
    sections=(
        Section("", TILES),
        Section("Routing", ROUTING),
        Section("Admission", ADMISSION),
        Section("Attempts", ATTEMPTS),
    ),
    variables=(JOB, INSTANCE, MODEL, WORKER),
    markers=worker_markers(GATEWAY),
)
