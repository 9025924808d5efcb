"""The lower part of the overview: what the gateway itself takes and loses, and what the workers cost."""

from __future__ import annotations

from grafana.panels import PanelBuilder, Query, lines
from grafana.promql import RATE_INTERVAL, ratio
from grafana.variables import GATEWAY, SITE

COST: list[PanelBuilder] = [
    lines(
        "Cost per hour",
        [Query(f"3600 * {GATEWAY.rate('gateway_worker_cost_total', ('model',))}", "{{model}}")],
        "short",
        "What the workers cost per hour, in the currency of the configured price: `gateway_worker_cost_total`.",
        stacked=True,
        no_value="no price configured",
        width=12,
    ),
    lines(
        "Cost per million output tokens, in the time range",
        [
            Query(
                "1e6 * "
                + ratio(
                    GATEWAY.increase("gateway_worker_cost_total", ("model",)),
                    GATEWAY.increase("gateway_output_tokens_total", ("model",)),
                ),
                "{{model}}",
            )
        ],
        "short",
        "Idle time included: what the workers cost by the tokens they generated, over the shown time range up to each "
        "moment: `gateway_worker_cost_total`, `gateway_output_tokens_total`.",
        no_value="no price configured, or no tokens",
        width=12,
    ),
]

OWN_COST: list[PanelBuilder] = [
    lines(
        "Gateway's own time, mean by stage",
        [Query(SITE.mean("gateway_overhead_seconds", ("stage",)), "{{stage}}")],
        "s",
        "Time the gateway itself spent on an exchange; admission has the wait for a worker in it: "
        "`gateway_overhead_seconds`.",
        stacked=True,
        width=12,
    ),
    lines(
        "Gateway's own time, p99 by stage",
        [Query(SITE.quantile(0.99, "gateway_overhead_seconds", ("stage",)), "{{stage}}")],
        "s",
        "99 of 100 exchanges spent at most this long in the stage: `gateway_overhead_seconds`.",
        width=12,
    ),
    lines(
        "Lost log lines and spans",
        [
            Query(SITE.rate("gateway_log_lines_dropped_total"), "log lines"),
            Query(SITE.rate("gateway_trace_spans_dropped_total"), "spans"),
        ],
        "cps",
        "Dropped per second because nobody took them; requests never wait for either: "
        "`gateway_log_lines_dropped_total`, `gateway_trace_spans_dropped_total`.",
        no_value="no gateway",
        width=12,
    ),
    lines(
        "Gateway processes",
        [
            Query(SITE.total("gateway_processes_serving"), "serving"),
            Query(SITE.increase("gateway_process_crashes_total", over=RATE_INTERVAL), "crashes"),
            Query(SITE.increase("gateway_lost_requests_total", over=RATE_INTERVAL), "requests lost with them"),
        ],
        "short",
        "Processes that accept clients, and what crashes took with them: `gateway_processes_serving`, "
        "`gateway_process_crashes_total`, `gateway_lost_requests_total`.",
        no_value="no gateway",
        width=12,
    ),
    lines(
        "Scrape duration",
        [Query('max by (instance) (scrape_duration_seconds{job=~"$job", instance=~"$instance"})', "{{instance}}")],
        "s",
        "How long Prometheus waits for the gateway's metrics: `scrape_duration_seconds`.",
        no_value="no gateway",
        width=12,
    ),
]
