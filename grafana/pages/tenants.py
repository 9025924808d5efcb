"""Who uses the gateway, by the names of API keys: how much, with what success, and whose load is turned away."""

from __future__ import annotations

from grafana.page import Page, Section, Variable
from grafana.panels import Column, Judged, PanelBuilder, Query, grid, lines, tile
from grafana.promql import Scope, ratio
from grafana.variables import INSTANCE, JOB, SITE, worker_markers

REQUESTS = "gateway_tenant_requests_total"
PROMPT = "gateway_tenant_prompt_tokens_total"
OUTPUT = "gateway_tenant_output_tokens_total"
IN_FLIGHT = "gateway_tenant_requests_in_flight"

TENANT = Variable(
    "tenant",
    "Tenant",
    f'{IN_FLIGHT}{{job=~"$job", instance=~"$instance"}}',
    "Name of an API key that has been used; `anonymous` is requests without a key, `other` those of further tenants.",
)
TENANTS = Scope('job=~"$job", instance=~"$instance", tenant=~"$tenant"')
EACH = ("tenant",)
LEGEND = "{{tenant}}"

FAILED = 'outcome!~"ok|client_error|client_closed|rejected"'
REJECTED = 'outcome="rejected"'
CLIENTS = 'outcome=~"client_error|client_closed"'
AT_THE_TOP = 10


def _share_of(mine: str, total: str) -> str:
    """A part of each tenant; `total` has no labels. No sample when there is nothing to share."""
    return f"{mine} / on () group_left () ({total} > 0)"


def _share(metric: str) -> str:
    """Of each tenant in all tenants of the chosen gateways, those that are not chosen included."""
    return _share_of(TENANTS.rate(metric, EACH), SITE.rate(metric))


def _top(metric: str, where: str = "") -> str:
    """The tenants with most in the time range, whole numbers, none without any."""
    return f"topk({AT_THE_TOP}, round({TENANTS.increase(metric, EACH, where)}) > 0)"


TILES: list[PanelBuilder] = [
    tile(
        "Active tenants",
        f"count({TENANTS.increase(REQUESTS, EACH)} > 0)",
        "short",
        "Tenants whose requests ended within the shown time range: `gateway_tenant_requests_total`.",
        decimals=0,
    ),
    tile(
        "Requests",
        TENANTS.rate(REQUESTS),
        "reqps",
        "Exchanges that ended, per second: `gateway_tenant_requests_total`.",
    ),
    tile(
        "Output tokens",
        TENANTS.rate(OUTPUT),
        "count:tok/s",
        "Generated tokens per second, from the workers' own usage: `gateway_tenant_output_tokens_total`.",
    ),
    tile(
        "Prompt tokens",
        TENANTS.rate(PROMPT),
        "count:tok/s",
        "Prompt tokens per second, from the workers' own usage: `gateway_tenant_prompt_tokens_total`.",
    ),
    tile(
        "In flight",
        TENANTS.total(IN_FLIGHT),
        "short",
        "Exchanges that have begun and not ended: `gateway_tenant_requests_in_flight`.",
    ),
    tile(
        "Failed",
        ratio(TENANTS.rate(REQUESTS, where=FAILED), TENANTS.rate(REQUESTS)),
        "percentunit",
        "Share of exchanges that ended badly, and not on the client's account: `gateway_tenant_requests_total`.",
        judged=Judged(warn=0.001, bad=0.01),
        decimals=2,
    ),
    tile(
        "Turned away",
        ratio(TENANTS.rate(REQUESTS, where=REJECTED), TENANTS.rate(REQUESTS)),
        "percentunit",
        "Share of exchanges rejected on purpose: `gateway_tenant_requests_total`.",
        judged=Judged(warn=0.01, bad=0.1),
        decimals=2,
    ),
    tile(
        "Largest share",
        f"max({_share(OUTPUT)})",
        "percentunit",
        "Of all generated tokens, the share of the tenant that has most: `gateway_tenant_output_tokens_total`.",
        decimals=1,
    ),
]

ALL: list[PanelBuilder] = [
    grid(
        "Tenants",
        EACH,
        [
            Column("Requests", f"round({TENANTS.increase(REQUESTS, EACH)})", "short"),
            Column("Failed", f"round({TENANTS.increase(REQUESTS, EACH, FAILED)})", "short"),
            Column("Turned away", f"round({TENANTS.increase(REQUESTS, EACH, REJECTED)})", "short"),
            Column("Client's fault, or left", f"round({TENANTS.increase(REQUESTS, EACH, CLIENTS)})", "short"),
            Column("Prompt tokens", f"round({TENANTS.increase(PROMPT, EACH)})", "short"),
            Column("Output tokens", f"round({TENANTS.increase(OUTPUT, EACH)})", "short"),
            Column(
                "Share of output tokens",
                _share_of(TENANTS.increase(OUTPUT, EACH), SITE.increase(OUTPUT)),
                "percentunit",
            ),
            Column("In flight now", TENANTS.total(IN_FLIGHT, EACH), "short"),
        ],
        "One row for each tenant, over the shown time range; click a name to see that tenant alone: "
        "`gateway_tenant_requests_total`, `gateway_tenant_prompt_tokens_total`, `gateway_tenant_output_tokens_total`, "
        "`gateway_tenant_requests_in_flight`.",
        links={"tenant": "vllm-gateway-tenants"},
        no_value="no traffic",
        height=8,
    )
]

USE: list[PanelBuilder] = [
    lines(
        "Requests by tenant",
        [Query(f"{TENANTS.rate(REQUESTS, EACH)} > 0", LEGEND)],
        "reqps",
        "Exchanges that ended, per second: `gateway_tenant_requests_total`.",
        stacked=True,
    ),
    lines(
        "Output tokens by tenant",
        [Query(f"{TENANTS.rate(OUTPUT, EACH)} > 0", LEGEND)],
        "count:tok/s",
        "Generated tokens per second, from the workers' own usage: `gateway_tenant_output_tokens_total`.",
        stacked=True,
    ),
    lines(
        "Prompt tokens by tenant",
        [Query(f"{TENANTS.rate(PROMPT, EACH)} > 0", LEGEND)],
        "count:tok/s",
        "Prompt tokens per second, from the workers' own usage: `gateway_tenant_prompt_tokens_total`.",
        stacked=True,
    ),
    lines(
        "Share of requests",
        [Query(_share(REQUESTS), LEGEND)],
        "percentunit",
        "Of all exchanges of the chosen gateways, whichever tenants are chosen: `gateway_tenant_requests_total`.",
        at_most=1,
    ),
    lines(
        "Share of output tokens",
        [Query(_share(OUTPUT), LEGEND)],
        "percentunit",
        "Of all generated tokens of the chosen gateways, whichever tenants are chosen: "
        "`gateway_tenant_output_tokens_total`.",
        at_most=1,
    ),
    lines(
        "In flight by tenant",
        [Query(TENANTS.total(IN_FLIGHT, EACH), LEGEND)],
        "short",
        "Exchanges that have begun and not ended: `gateway_tenant_requests_in_flight`. `gateway keys create "
        "--max-in-flight` limits them.",
        stacked=True,
    ),
]

OUTCOMES: list[PanelBuilder] = [
    lines(
        "Failures by tenant",
        [Query(f"{TENANTS.rate(REQUESTS, EACH, FAILED)} > 0", LEGEND)],
        "reqps",
        "Exchanges that ended badly, per second, and not on the client's account: `gateway_tenant_requests_total`.",
        stacked=True,
        no_value="none",
    ),
    lines(
        "Turned away by tenant",
        [Query(f"{TENANTS.rate(REQUESTS, EACH, REJECTED)} > 0", LEGEND)],
        "reqps",
        "Load rejected on purpose, per second; why, by model, is on the page Routing and admission: "
        "`gateway_tenant_requests_total`.",
        stacked=True,
        no_value="none",
    ),
    lines(
        "Clients' faults and departures by tenant",
        [Query(f"{TENANTS.rate(REQUESTS, EACH, CLIENTS)} > 0", LEGEND)],
        "reqps",
        "Exchanges per second that ended on the client's account: `gateway_tenant_requests_total`.",
        stacked=True,
        no_value="none",
    ),
    lines(
        "Requests by outcome",
        [Query(f"{TENANTS.rate(REQUESTS, ('outcome',))} > 0", "{{outcome}}")],
        "reqps",
        "Exchanges of the chosen tenants that ended, per second; only `ok` is a success: "
        "`gateway_tenant_requests_total`.",
        stacked=True,
        width=12,
    ),
    lines(
        "Share of failures and rejections by tenant",
        [
            Query(
                f"{ratio(TENANTS.rate(REQUESTS, EACH, FAILED), TENANTS.rate(REQUESTS, EACH))} > 0",
                "{{tenant}} failed",
            ),
            Query(
                f"{ratio(TENANTS.rate(REQUESTS, EACH, REJECTED), TENANTS.rate(REQUESTS, EACH))} > 0",
                "{{tenant}} turned away",
            ),
        ],
        "percentunit",
        "Of each tenant's own exchanges: `gateway_tenant_requests_total`.",
        at_most=1,
        no_value="none",
        width=12,
    ),
]

TOP: list[PanelBuilder] = [
    grid(
        "Most output tokens",
        EACH,
        [Column("Output tokens", _top(OUTPUT), "short")],
        "The ten tenants for whom most tokens were generated in the shown time range: "
        "`gateway_tenant_output_tokens_total`.",
        no_value="no traffic",
        width=8,
    ),
    grid(
        "Most requests turned away",
        EACH,
        [Column("Turned away", _top(REQUESTS, REJECTED), "short")],
        "The ten tenants most of whose exchanges were rejected in the shown time range: "
        "`gateway_tenant_requests_total`.",
        no_value="none",
        width=8,
    ),
    grid(
        "Most failures",
        EACH,
        [Column("Failed", _top(REQUESTS, FAILED), "short")],
        "The ten tenants with most exchanges that ended badly in the shown time range: "
        "`gateway_tenant_requests_total`.",
        no_value="none",
        width=8,
    ),
]

PAGE = Page(
    uid="vllm-gateway-tenants",
    title="Tenants",
    description="What each tenant (the name of an API key) asks for, gets, and is refused. docs/keys.md.",
    sections=(
        Section("", TILES),
        Section("In the time range", ALL),
        Section("Use", USE),
        Section("Outcomes", OUTCOMES),
        Section("The ten with most, in the time range", TOP),
    ),
    variables=(JOB, INSTANCE, TENANT),
    markers=worker_markers(SITE),
)
