"""What users feel, per model: traffic, failures, latency, and how much of the error budget is left."""

from __future__ import annotations

from grafana.page import Page, Section
from grafana.pages.own_share import COST, OWN_COST
from grafana.panels import Column, Judged, PanelBuilder, Query, grid, heat, lines, percentiles, tile
from grafana.promql import in_state, or_zero, ratio
from grafana.variables import GATEWAY, INSTANCE, ITL_TARGET, JOB, MODEL, TTFT_TARGET, worker_markers

REQUESTS = "gateway_requests_total"
TTFT = "gateway_time_to_first_token_seconds"
ITL = "gateway_inter_token_latency_seconds"
TPOT = "gateway_time_per_output_token_seconds"
DURATION = "gateway_request_duration_seconds"

COUNTED = 'outcome!~"client_error|client_closed|rejected"'
"""Exchanges the service answers for: a client's fault, a client's departure and load turned away on purpose are not."""
SUCCESS = 'outcome="ok"'
SLO_SERIES = 'model=~"$model"'

AVAILABILITY_JUDGED = Judged(warn=0.999, bad=0.99, high_is_good=True)


def _success(by: tuple[str, ...] = ()) -> str:
    return ratio(GATEWAY.rate(REQUESTS, by, SUCCESS), GATEWAY.rate(REQUESTS, by, COUNTED))


TILES: list[PanelBuilder] = [
    tile(
        "Requests",
        GATEWAY.rate(REQUESTS),
        "reqps",
        "Exchanges that ended, per second, whatever their outcome: `gateway_requests_total`.",
    ),
    tile(
        "Availability",
        _success(),
        "percentunit",
        "Share of answered exchanges among those the service answers for (clients' faults, departures and load turned "
        "away on purpose are left out): `gateway_requests_total`.",
        judged=AVAILABILITY_JUDGED,
        decimals=2,
    ),
    tile(
        "TTFT p95",
        GATEWAY.quantile(0.95, TTFT),
        "s",
        "95 of 100 streams had their first token within this time, queue included: "
        "`gateway_time_to_first_token_seconds`.",
    ),
    tile(
        "ITL p95",
        GATEWAY.quantile(0.95, ITL),
        "s",
        "95 of 100 gaps between two token events of a stream were at most this long: "
        "`gateway_inter_token_latency_seconds`.",
    ),
    tile(
        "Output tokens",
        GATEWAY.rate("gateway_output_tokens_total"),
        "count:tok/s",
        "Generated tokens per second, from the workers' usage: `gateway_output_tokens_total`.",
    ),
    tile(
        "Prompt tokens",
        GATEWAY.rate("gateway_prompt_tokens_total"),
        "count:tok/s",
        "Prompt tokens per second, from the workers' usage: `gateway_prompt_tokens_total`.",
    ),
    tile(
        "In flight",
        GATEWAY.total("gateway_requests_in_flight"),
        "short",
        "Exchanges that have begun and not ended: `gateway_requests_in_flight`. Zero at idle.",
        no_value="no gateway",
    ),
    tile(
        "Workers not ready",
        f"{GATEWAY.total('gateway_worker_state')} - {GATEWAY.total('gateway_worker_state', where=in_state('ready'))}",
        "short",
        "Workers in any state but ready: `gateway_worker_state`.",
        judged=Judged(warn=1, bad=2),
        no_value="no gateway",
    ),
]

OBJECTIVES: list[PanelBuilder] = [
    tile(
        "TTFT within target",
        GATEWAY.within(TTFT, "$ttft_target"),
        "percentunit",
        "Share of streams whose first token came within the chosen target: `gateway_time_to_first_token_seconds`.",
        judged=Judged(warn=0.95, bad=0.9, high_is_good=True),
        decimals=2,
        width=4,
    ),
    tile(
        "ITL within target",
        GATEWAY.within(ITL, "$itl_target"),
        "percentunit",
        "Share of gaps between token events within the chosen target: `gateway_inter_token_latency_seconds`.",
        judged=Judged(warn=0.99, bad=0.95, high_is_good=True),
        decimals=2,
        width=4,
    ),
    tile(
        "Error budget left",
        "clamp_min(min by (slo) (1 - (1 - "
        f"sum by (slo, model) (increase(slo:good_events:total{{{SLO_SERIES}}}[$__range])) / "
        f"(sum by (slo, model) (increase(slo:events:total{{{SLO_SERIES}}}[$__range])) > 0)) "
        "/ on (slo) group_left () max by (slo) (slo:budget:ratio)), -1)",
        "percentunit",
        "Of the failures that the objective allows in the shown time range, the share still unused, for the model that "
        "has least; -100 % is overspent twice over or more: `slo:events:total`, `slo:good_events:total`, "
        "`slo:budget:ratio` (recording rules).",
        judged=Judged(warn=0.5, bad=0.001, high_is_good=True),
        decimals=1,
        legend="{{slo}}",
        width=8,
    ),
    tile(
        "Alerts firing",
        or_zero('count(ALERTS{alertstate="firing", product="vllm-gateway"})'),
        "short",
        "Alerts of `deploy/prometheus/rules` that fire now, of all models: `ALERTS`. Their names are in the table.",
        judged=Judged(warn=1, bad=1),
        width=4,
    ),
    tile(
        "Gateways down",
        or_zero('count(up{job=~"$job"} == 0)'),
        "short",
        "Admin ports that Prometheus cannot scrape: `up`.",
        judged=Judged(warn=1, bad=1),
        width=4,
    ),
    lines(
        "Burn rate, 1 hour",
        [Query(f"max by (slo, model) (slo:burn_rate:1h{{{SLO_SERIES}}})", "{{slo}} {{model}}")],
        "short",
        "How many times faster than allowed the error budget is used up; above 14.4 (with the last 5 minutes above it "
        "as well) somebody is paged: `slo:burn_rate:1h` (recording rule).",
        judged=Judged(warn=1, bad=14.4),
        width=8,
    ),
    lines(
        "Burn rate, 6 hours",
        [Query(f"max by (slo, model) (slo:burn_rate:6h{{{SLO_SERIES}}})", "{{slo}} {{model}}")],
        "short",
        "As before, over six hours; above 6 (with the last 30 minutes above it as well) somebody is paged: "
        "`slo:burn_rate:6h` (recording rule).",
        judged=Judged(warn=1, bad=6),
        width=8,
    ),
    grid(
        "Alerts",
        ("alertname", "severity", "slo", "model", "worker"),
        [
            Column(
                "Firing",
                "max by (alertname, severity, slo, model, worker) "
                '(ALERTS{alertstate="firing", product="vllm-gateway"})',
                "short",
            )
        ],
        "Alerts of `deploy/prometheus/rules` that fire now: `ALERTS`. What to do: docs/observability.md.",
        no_value="none",
        width=8,
        height=8,
    ),
]

MODELS: list[PanelBuilder] = [
    grid(
        "Models",
        ("model",),
        [
            Column("Requests", GATEWAY.rate(REQUESTS, ("model",)), "reqps"),
            Column("Availability", _success(("model",)), "percentunit", AVAILABILITY_JUDGED),
            Column("TTFT p95", GATEWAY.quantile(0.95, TTFT, ("model",)), "s"),
            Column("ITL p95", GATEWAY.quantile(0.95, ITL, ("model",)), "s"),
            Column("Output tokens", GATEWAY.rate("gateway_output_tokens_total", ("model",)), "count:tok/s"),
            Column("In flight", GATEWAY.total("gateway_requests_in_flight", ("model",)), "short"),
            Column("Ready", GATEWAY.total("gateway_worker_state", ("model",), in_state("ready")), "short"),
            Column("Workers", GATEWAY.total("gateway_worker_state", ("model",)), "short"),
        ],
        "One row for each model, as of now; click a name to see that model alone: `gateway_requests_total`, "
        "`gateway_time_to_first_token_seconds`, `gateway_inter_token_latency_seconds`, `gateway_output_tokens_total`, "
        "`gateway_requests_in_flight`, `gateway_worker_state`.",
        links={"model": "vllm-gateway-overview"},
    )
]

TRAFFIC: list[PanelBuilder] = [
    lines(
        "Requests by outcome",
        [Query(f"{GATEWAY.rate(REQUESTS, ('outcome',))} > 0", "{{outcome}}")],
        "reqps",
        "Exchanges that ended, per second; only `ok` is a success: `gateway_requests_total`.",
        stacked=True,
    ),
    lines(
        "Requests by model",
        [Query(GATEWAY.rate(REQUESTS, ("model",)), "{{model}}")],
        "reqps",
        "Exchanges that ended, per second: `gateway_requests_total`.",
        stacked=True,
    ),
    lines(
        "Requests by endpoint",
        [Query(GATEWAY.rate(REQUESTS, ("endpoint",)), "{{endpoint}}")],
        "reqps",
        "Exchanges that ended, per second: `gateway_requests_total`.",
        stacked=True,
    ),
    lines(
        "Output tokens by model",
        [
            Query(GATEWAY.rate("gateway_output_tokens_total", ("model",)), "{{model}}"),
            Query(GATEWAY.rate("gateway_unconfirmed_token_events_total"), "token events without usage"),
        ],
        "count:tok/s",
        "Generated tokens per second, counted when an exchange ends, and token events of streams whose usage never "
        "came, because the client left or the worker died: `gateway_output_tokens_total`, "
        "`gateway_unconfirmed_token_events_total`.",
        stacked=True,
    ),
    lines(
        "Prompt tokens, computed and from cache",
        [
            Query(
                f"{GATEWAY.rate('gateway_prompt_tokens_total')} - {GATEWAY.rate('gateway_cached_prompt_tokens_total')}",
                "computed",
            ),
            Query(GATEWAY.rate("gateway_cached_prompt_tokens_total"), "from prefix cache"),
        ],
        "count:tok/s",
        "Prompt tokens per second, split by whether the worker found them in its prefix cache: "
        "`gateway_prompt_tokens_total`, `gateway_cached_prompt_tokens_total`.",
        stacked=True,
    ),
    lines(
        "In flight by model",
        [Query(GATEWAY.total("gateway_requests_in_flight", ("model",)), "{{model}}")],
        "short",
        "Exchanges that have begun and not ended: `gateway_requests_in_flight`.",
        stacked=True,
        no_value="no gateway",
    ),
]

LATENCY: list[PanelBuilder] = [
    lines(
        "Time to first token",
        percentiles(GATEWAY, TTFT),
        "s",
        "Streams: complete request to first token event written to the client, queue included: "
        "`gateway_time_to_first_token_seconds`.",
    ),
    lines(
        "Inter-token latency",
        percentiles(GATEWAY, ITL),
        "s",
        "Streams: gap between two token events: `gateway_inter_token_latency_seconds`.",
    ),
    lines(
        "Time per output token",
        percentiles(GATEWAY, TPOT),
        "s",
        "Streams: time from first to last token event by output tokens after the first: "
        "`gateway_time_per_output_token_seconds`.",
    ),
    heat(
        "Time to first token, distribution",
        GATEWAY.buckets(TTFT),
        "s",
        "Streams per bucket and step: `gateway_time_to_first_token_seconds`.",
    ),
    heat(
        "Inter-token latency, distribution",
        GATEWAY.buckets(ITL),
        "s",
        "Gaps per bucket and step: `gateway_inter_token_latency_seconds`.",
    ),
    heat(
        "Request duration, distribution",
        GATEWAY.buckets(DURATION),
        "s",
        "Exchanges per bucket and step: `gateway_request_duration_seconds`.",
    ),
    lines(
        "TTFT p95 by model",
        [Query(GATEWAY.quantile(0.95, TTFT, ("model",)), "{{model}}")],
        "s",
        "95 of 100 streams had their first token within this time: `gateway_time_to_first_token_seconds`.",
    ),
    lines(
        "ITL p95 by model",
        [Query(GATEWAY.quantile(0.95, ITL, ("model",)), "{{model}}")],
        "s",
        "95 of 100 gaps were at most this long: `gateway_inter_token_latency_seconds`.",
    ),
    lines(
        "Request duration p95 by endpoint",
        [Query(GATEWAY.quantile(0.95, DURATION, ("endpoint",)), "{{endpoint}}")],
        "s",
        "From the first byte of the request to the end of the exchange: `gateway_request_duration_seconds`.",
    ),
]

FAILURES: list[PanelBuilder] = [
    lines(
        "Failures the service answers for",
        [
            Query(
                GATEWAY.rate(REQUESTS, ("outcome",), 'outcome!~"ok|client_error|client_closed|rejected"') + " > 0",
                "{{outcome}}",
            )
        ],
        "reqps",
        "Exchanges that ended badly, per second; these use up the error budget: `gateway_requests_total`.",
        stacked=True,
        no_value="none",
    ),
    lines(
        "Turned away by reason",
        [Query(GATEWAY.rate("gateway_rejections_total", ("reason",)) + " > 0", "{{reason}}")],
        "reqps",
        "Load rejected on purpose, per second: `gateway_rejections_total`.",
        stacked=True,
        no_value="none",
    ),
    lines(
        "Clients' faults and departures",
        [
            Query(GATEWAY.rate(REQUESTS, where='outcome="client_error"'), "client error"),
            Query(GATEWAY.rate(REQUESTS, where='outcome="client_closed"'), "client left"),
        ],
        "reqps",
        "Exchanges per second that ended on the client's account; not counted against the service: "
        "`gateway_requests_total`.",
        stacked=True,
        no_value="none",
    ),
]

PAGE = Page(
    uid="vllm-gateway-overview",
    title="Overview and SLO",
    description="What users of the gateway feel, per model. Objectives and alerts: docs/observability.md.",
    sections=(
        Section("", TILES),
        Section("Objectives", OBJECTIVES),
        Section("Models", MODELS),
        Section("Latency", LATENCY),
        Section("Traffic", TRAFFIC),
        Section("Failures", FAILURES),
        Section("The gateway's own share", OWN_COST),
        Section("Cost (models with a price)", COST, collapsed=True),
    ),
    variables=(JOB, INSTANCE, MODEL, TTFT_TARGET, ITL_TARGET),
    markers=worker_markers(GATEWAY),
)
