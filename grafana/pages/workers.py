"""The life of the workers, as the supervisor that launches and restarts them sees it."""

from __future__ import annotations

from grafana.page import Page, Section
from grafana.panels import Column, Judged, PanelBuilder, Query, grid, heat, lines, tile, timeline
from grafana.promql import RATE_INTERVAL, in_state
from grafana.variables import GATEWAY, INSTANCE, JOB, MODEL, WORKER, WORKERS, worker_markers

STATE = "gateway_worker_state"
STATES = {
    0: ("stopped", "text"),
    1: ("starting", "blue"),
    2: ("ready", "green"),
    3: ("unhealthy", "red"),
    4: ("draining", "purple"),
    5: ("stopping", "light-purple"),
    6: ("backoff", "orange"),
    7: ("failed", "dark-red"),
}
RESTART = "gateway_worker_restarts_total"
START = "gateway_worker_start_duration_seconds"
AGE = "gateway_worker_progress_age_seconds"


def _state_number() -> str:
    """The number of the state that is 1, by worker."""
    parts = (f"{WORKERS.series(STATE, in_state(name))} * {number}" for number, (name, _) in STATES.items())
    return f"sum by (model, worker) ({' or '.join(parts)})"


TILES: list[PanelBuilder] = [
    tile(
        "Ready",
        WORKERS.total(STATE, where=in_state("ready")),
        "short",
        "Workers that serve: `gateway_worker_state`.",
        no_value="no workers",
        width=4,
    ),
    tile(
        "Starting",
        WORKERS.total(STATE, where=in_state("starting")),
        "short",
        "Workers that load their model: `gateway_worker_state`.",
        no_value="no workers",
        width=4,
    ),
    tile(
        "Unhealthy, in back-off or failed",
        WORKERS.total(STATE, where='state=~"unhealthy|backoff|failed"'),
        "short",
        "Workers that should serve and do not: `gateway_worker_state`.",
        judged=Judged(warn=1, bad=2),
        no_value="no workers",
        width=4,
    ),
    tile(
        "Restarts in the time range",
        f"round({WORKERS.increase(RESTART)}) or vector(0)",
        "short",
        "Times a worker was started again within the shown time range: `gateway_worker_restarts_total`.",
        judged=Judged(warn=1, bad=5),
        decimals=0,
        width=4,
    ),
    tile(
        "Longest without progress",
        WORKERS.highest(AGE),
        "s",
        "Of the workers with requests in flight, the longest time since the last byte on any stream: "
        "`gateway_worker_progress_age_seconds`.",
        judged=Judged(warn=15, bad=60),
        no_value="no workers",
        width=4,
    ),
    tile(
        "Ready workers not scraped",
        'count((up{worker=~"$worker", model=~"$model"} == 0) and on (worker) '
        f"({WORKERS.series(STATE, in_state('ready'))} == 1)) or vector(0)",
        "short",
        "Workers that serve, and whose own metrics Prometheus does not get: `up`, `gateway_worker_state`.",
        judged=Judged(warn=1, bad=2),
        width=4,
    ),
]

LIFE: list[PanelBuilder] = [
    timeline(
        "States",
        Query(_state_number(), "{{worker}}"),
        STATES,
        "What each worker was doing: `gateway_worker_state`.",
    ),
    grid(
        "Workers",
        ("model", "worker"),
        [
            Column("Ready", WORKERS.total(STATE, ("model", "worker"), in_state("ready")), "bool_yes_no"),
            Column("In flight", WORKERS.total("gateway_worker_in_flight", ("model", "worker")), "short"),
            Column("Without progress", WORKERS.highest(AGE, ("model", "worker")), "s", Judged(warn=15, bad=60)),
            Column("Restarts", f"round({WORKERS.increase(RESTART, ('model', 'worker'))})", "short"),
            Column("Circuit", WORKERS.highest("gateway_worker_circuit_state", ("model", "worker")), "short"),
        ],
        "One row for each worker, as of now; click a name to see that worker alone. Restarts: in the shown time "
        "range. Circuit: 0 closed, 1 half open, 2 open. `gateway_worker_state`, `gateway_worker_in_flight`, "
        "`gateway_worker_progress_age_seconds`, `gateway_worker_restarts_total`, `gateway_worker_circuit_state`.",
        links={"model": "vllm-gateway-workers", "worker": "vllm-gateway-workers"},
    ),
    lines(
        "Ready workers by model",
        [Query(GATEWAY.total(STATE, ("model",), in_state("ready")), "{{model}}")],
        "short",
        "Workers that serve: `gateway_worker_state`.",
        no_value="no workers",
    ),
    lines(
        "Restarts by reason",
        [Query(f"round({WORKERS.increase(RESTART, ('reason',), over=RATE_INTERVAL)}) > 0", "{{reason}}")],
        "short",
        "Workers started again, by what ended them: `gateway_worker_restarts_total`.",
        stacked=True,
        no_value="none",
    ),
    lines(
        "Time without progress",
        [Query(WORKERS.highest(AGE, ("worker",)), "{{worker}}")],
        "s",
        "Since the last byte on any stream of a worker with requests in flight; 0 without any: "
        "`gateway_worker_progress_age_seconds`.",
        judged=Judged(warn=15, bad=60),
        no_value="no workers",
    ),
]

STARTS: list[PanelBuilder] = [
    lines(
        "Start duration, in the time range",
        [
            Query(GATEWAY.quantile(0.5, START, ("model",), over="$__range"), "{{model}} p50"),
            Query(GATEWAY.quantile(0.95, START, ("model",), over="$__range"), "{{model}} p95"),
            Query(GATEWAY.mean(START, ("model",), over="$__range"), "{{model}} mean"),
        ],
        "s",
        "From the spawn of a worker to its first ready, over the shown time range: "
        "`gateway_worker_start_duration_seconds`.",
        no_value="no starts",
    ),
    heat(
        "Start duration, distribution",
        GATEWAY.buckets(START),
        "s",
        "Starts per bucket and step: `gateway_worker_start_duration_seconds`.",
    ),
    lines(
        "Scrape duration by worker",
        [Query('max by (worker) (scrape_duration_seconds{worker=~"$worker", model=~"$model"}) > 0', "{{worker}}")],
        "s",
        "How long Prometheus waits for a worker's own metrics, through the admin port: `scrape_duration_seconds`. "
        "A worker that answers slowly here is busy or hangs.",
        no_value="no workers",
    ),
]

PAGE = Page(
    uid="vllm-gateway-workers",
    title="Workers and supervisor",
    description="The workers' life: starts, restarts, health and progress, as the supervisor sees them.",
    sections=(Section("", TILES), Section("Life", LIFE), Section("Starts and scrapes", STARTS)),
    variables=(JOB, INSTANCE, MODEL, WORKER),
    markers=worker_markers(GATEWAY),
)
