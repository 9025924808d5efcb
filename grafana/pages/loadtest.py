"""A load test as its client sees it, laid over what the gateway says of the same requests."""

from __future__ import annotations

from grafana.page import Page, Section, Variable
from grafana.panels import Judged, PanelBuilder, Query, heat, lines, percentiles, tile
from grafana.promql import Scope, ratio
from grafana.variables import worker_markers

RUN = Scope('job=~"$job", instance=~"$instance"')
EVERY_GATEWAY = Scope("")

REQUESTS = "loadtest_requests_total"
TTFT = "loadtest_time_to_first_token_seconds"
TTFT_FROM_SCHEDULE = "loadtest_time_to_first_token_from_schedule_seconds"
GAP = "loadtest_token_event_gap_seconds"
TPOT = "loadtest_time_per_output_token_seconds"
E2E = "loadtest_request_duration_seconds"
LAG = "loadtest_send_lag_seconds"

JOB = Variable("job", "Job", "loadtest_run_info", "Scrape job of the load generator.", open_ended=False)
INSTANCE = Variable("instance", "Run", 'loadtest_run_info{job=~"$job"}', "Address of the load generator.")


TILES: list[PanelBuilder] = [
    tile(
        "Scheduled",
        RUN.rate("loadtest_scheduled_requests_total"),
        "reqps",
        "Requests that were due, per second: `loadtest_scheduled_requests_total`.",
        no_value="no run",
    ),
    tile(
        "Successes",
        ratio(RUN.rate(REQUESTS, where='outcome="ok"'), RUN.rate(REQUESTS)),
        "percentunit",
        "Share of ended requests that were answered to the end: `loadtest_requests_total`.",
        judged=Judged(warn=0.999, bad=0.99, high_is_good=True),
        decimals=2,
        no_value="no run",
    ),
    tile(
        "TTFT p95",
        RUN.quantile(0.95, TTFT),
        "s",
        "From sending to the first token event, at the client: `loadtest_time_to_first_token_seconds`.",
        no_value="no run",
    ),
    tile(
        "Gap p95",
        RUN.quantile(0.95, GAP),
        "s",
        "Between two token events, at the client: `loadtest_token_event_gap_seconds`.",
        no_value="no run",
    ),
    tile(
        "Output tokens",
        RUN.rate("loadtest_output_tokens_total"),
        "count:tok/s",
        "Generated tokens of successes per second: `loadtest_output_tokens_total`.",
        no_value="no run",
    ),
    tile(
        "In flight",
        RUN.total("loadtest_in_flight_requests"),
        "short",
        "Requests that are due and have not ended: `loadtest_in_flight_requests`.",
        no_value="no run",
    ),
    tile(
        "Send lag",
        RUN.highest(LAG),
        "s",
        "Largest delay between schedule and sending in the last second. It is the client's own: when it is large, the "
        "figures speak of the client, not of the server. `loadtest_send_lag_seconds`.",
        judged=Judged(warn=0.02, bad=0.1),
        no_value="no run",
    ),
    tile(
        "Done",
        "max("
        + ratio(
            RUN.series("loadtest_elapsed_seconds"),
            RUN.series("loadtest_planned_duration_seconds"),
        )
        + ")",
        "percentunit",
        "Elapsed share of the planned time: `loadtest_elapsed_seconds`, `loadtest_planned_duration_seconds`.",
        decimals=0,
        no_value="no run",
    ),
]

BOTH_SIDES: list[PanelBuilder] = [
    lines(
        "Time to first token, client and gateway",
        [
            Query(RUN.quantile(0.5, TTFT), "client p50"),
            Query(RUN.quantile(0.95, TTFT), "client p95"),
            Query(EVERY_GATEWAY.quantile(0.5, "gateway_time_to_first_token_seconds"), "gateway p50"),
            Query(EVERY_GATEWAY.quantile(0.95, "gateway_time_to_first_token_seconds"), "gateway p95"),
        ],
        "s",
        "Both sides of the wire, in the same buckets. The gateway's has all its traffic in it: "
        "`loadtest_time_to_first_token_seconds`, `gateway_time_to_first_token_seconds`.",
        width=12,
    ),
    lines(
        "Gap between token events, client and gateway",
        [
            Query(RUN.quantile(0.5, GAP), "client p50"),
            Query(RUN.quantile(0.95, GAP), "client p95"),
            Query(EVERY_GATEWAY.quantile(0.5, "gateway_inter_token_latency_seconds"), "gateway p50"),
            Query(EVERY_GATEWAY.quantile(0.95, "gateway_inter_token_latency_seconds"), "gateway p95"),
        ],
        "s",
        "Both sides of the wire, in the same buckets: `loadtest_token_event_gap_seconds`, "
        "`gateway_inter_token_latency_seconds`.",
        width=12,
    ),
]

LOAD: list[PanelBuilder] = [
    lines(
        "Scheduled, ended",
        [
            Query(RUN.rate("loadtest_scheduled_requests_total"), "scheduled"),
            Query(RUN.rate(REQUESTS), "ended"),
        ],
        "reqps",
        "Requests per second; ended below scheduled for long is a server that does not keep up: "
        "`loadtest_scheduled_requests_total`, `loadtest_requests_total`.",
        no_value="no run",
    ),
    lines(
        "Ended by outcome",
        [Query(RUN.rate(REQUESTS, ("outcome",)) + " > 0", "{{outcome}}")],
        "reqps",
        "Requests per second that ended so: `loadtest_requests_total`.",
        stacked=True,
        no_value="no run",
    ),
    lines(
        "In flight, client and gateway",
        [
            Query(RUN.total("loadtest_in_flight_requests"), "client"),
            Query(EVERY_GATEWAY.total("gateway_requests_in_flight"), "gateway"),
        ],
        "short",
        "Requests under way: `loadtest_in_flight_requests`, `gateway_requests_in_flight`.",
        no_value="no run",
    ),
    lines(
        "Tokens",
        [
            Query(RUN.rate("loadtest_output_tokens_total"), "output"),
            Query(RUN.rate("loadtest_prompt_tokens_total"), "prompt"),
            Query(RUN.rate("loadtest_cached_prompt_tokens_total"), "prompt, from cache"),
            Query(RUN.rate("loadtest_token_events_total"), "token events"),
        ],
        "count:tok/s",
        "Of successes, per second, and token events of all: `loadtest_output_tokens_total`, "
        "`loadtest_prompt_tokens_total`, `loadtest_cached_prompt_tokens_total`, `loadtest_token_events_total`.",
        no_value="no run",
    ),
    lines(
        "Send lag over time",
        [Query(RUN.highest(LAG), "largest in a second")],
        "s",
        "The client's own delay; it must be small against what is measured: `loadtest_send_lag_seconds`.",
        judged=Judged(warn=0.02, bad=0.1),
        no_value="no run",
    ),
    lines(
        "Waiting inside the engines",
        [Query(EVERY_GATEWAY.total("vllm:num_requests_waiting", ("worker",)), "{{worker}}")],
        "short",
        "Requests that wait in the workers meanwhile: `vllm:num_requests_waiting`.",
        stacked=True,
        no_value="no engines",
    ),
]

LATENCY: list[PanelBuilder] = [
    lines(
        "Time to first token, from sending",
        percentiles(RUN, TTFT),
        "s",
        "From sending to the first token event: `loadtest_time_to_first_token_seconds`.",
        no_value="no run",
    ),
    lines(
        "Time to first token, from schedule",
        percentiles(RUN, TTFT_FROM_SCHEDULE),
        "s",
        "From the moment the request was due, so that a late client hides nothing: "
        "`loadtest_time_to_first_token_from_schedule_seconds`.",
        no_value="no run",
    ),
    lines(
        "Request duration",
        percentiles(RUN, E2E),
        "s",
        "From schedule to last token event: `loadtest_request_duration_seconds`.",
        no_value="no run",
    ),
    lines(
        "Gap between token events",
        percentiles(RUN, GAP),
        "s",
        "Between two token events of a stream: `loadtest_token_event_gap_seconds`.",
        no_value="no run",
    ),
    lines(
        "Time per output token",
        percentiles(RUN, TPOT),
        "s",
        "Per request, after the first token event: `loadtest_time_per_output_token_seconds`.",
        no_value="no run",
    ),
    heat(
        "Time to first token, distribution",
        RUN.buckets(TTFT),
        "s",
        "Requests per bucket and step: `loadtest_time_to_first_token_seconds`.",
    ),
]

PAGE = Page(
    uid="vllm-gateway-loadtest",
    title="Load test",
    description="A run of `make loadtest` or `gateway bench` with --metrics-port, beside the gateway's own figures.",
    sections=(
        Section("", TILES),
        Section("Client and gateway", BOTH_SIDES),
        Section("Load", LOAD),
        Section("Latency at the client", LATENCY),
    ),
    variables=(JOB, INSTANCE),
    markers=worker_markers(EVERY_GATEWAY),
)
