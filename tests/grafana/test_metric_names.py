"""No dashboard, rule or alert asks for a series that nothing exports: the way public vLLM dashboards go stale."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.utils import floatToGoString

from gateway.metrics.catalogue import CATALOGUE
from gateway.metrics.layout import closed_values
from grafana.variables import ITL_TARGET, TTFT_TARGET
from tests.grafana.exported import known, ours, recorded, recording_rules, rules
from tests.grafana.reading import (
    ROOT,
    Target,
    annotation_targets,
    dashboards,
    panel_targets,
    selectors,
    variable_queries,
)


def every_query() -> list[Target]:
    """Of all dashboards and all rules."""
    found: list[Target] = []
    for page, dashboard in dashboards().items():
        found += panel_targets(page, dashboard)
        found += annotation_targets(page, dashboard)
        found += [Target(page, f"variable {name}", query) for name, query, _ in variable_queries(dashboard)]
    for rule in rules():
        found.append(Target("rules", rule.get("alert") or rule["record"], rule["expr"]))
    return found


def test_every_series_that_is_queried_exists() -> None:
    """By exact name, `_bucket`, `_count`, `_sum` and `_total` included."""
    names = known()

    unknown = {
        f"{target.name}: {selector.name}"
        for target in every_query()
        for selector in selectors(target.expr)
        if selector.name not in names
    }

    assert set() == unknown


def test_recorded_series_are_made_before_they_are_used() -> None:
    """No rule reads a recording that does not exist, and none records something nobody reads."""
    read = {selector.name for target in every_query() for selector in selectors(target.expr)}

    assert set() == recording_rules() - read


def test_every_gateway_metric_is_on_a_dashboard() -> None:
    """What is worth counting is worth showing."""
    shown = {
        selector.name
        for page, dashboard in dashboards().items()
        for target in panel_targets(page, dashboard)
        for selector in selectors(target.expr)
    }

    missing = {
        metric.name
        for metric in CATALOGUE
        if not shown & {metric.name, f"{metric.name}_bucket", f"{metric.name}_count", f"{metric.name}_sum"}
    }

    assert set() == missing


def test_every_gateway_metric_is_documented() -> None:
    """In the generated page."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

    assert [] == [metric.name for metric in CATALOGUE if f"`{metric.name}`" not in text]


NEW_IN_0_32 = {
    "vllm:admission_rejections_total",
    "vllm:request_num_preemptions_sum",
    "vllm:request_num_preemptions_count",
}


def test_panels_that_one_vllm_release_cannot_fill_are_known() -> None:
    """Every engine series is exported by both recorded releases, but for those whose panels say so."""
    asked = {selector.name for target in every_query() for selector in selectors(target.expr)}
    engines = {str(name) for name in asked if str(name).startswith("vllm:")}

    assert set() == engines - recorded("vllm-0.32")
    assert NEW_IN_0_32 == engines - recorded("vllm-0.25")


@pytest.mark.parametrize("gone", ["gpu_cache_usage_perc", "num_requests_swapped", "vllm:time_per_output_token_seconds"])
def test_names_that_vllm_gave_up_are_nowhere(gone: str) -> None:
    """The classics of stale dashboards."""
    texts = [path.read_text(encoding="utf-8") for path in Path(ROOT, "grafana", "dashboards").glob("*.json")]

    assert not any(gone in text for text in texts)


def test_the_gateway_reexports_no_engine_name() -> None:
    """Else whoever scrapes both counts twice; and no name of ours has a colon."""
    assert not [name for name in ours() if ":" in name]


def test_label_values_that_are_asked_for_exist() -> None:
    """A state, outcome or reason that was renamed would match nothing, for ever and without an error."""
    asked = [
        (target.name, metric, matcher)
        for target in every_query()
        for selector in selectors(target.expr)
        for metric in CATALOGUE
        if selector.name == metric.name or selector.name in (f"{metric.name}_bucket", f"{metric.name}_count")
        for matcher in selector.matchers.matchers
        if closed_values(metric, matcher.name)
    ]

    unknown = {
        (name, value)
        for name, metric, matcher in asked
        for value in matcher.value.split("|")
        if value not in (*closed_values(metric, matcher.name), ".*")
    }

    assert asked
    assert set() == unknown


def test_targets_are_bounds_of_buckets() -> None:
    """In the rules and among the choices above the overview; between two bounds no share can be told."""
    bounds = {metric.name: set(map(floatToGoString, metric.buckets)) for metric in CATALOGUE if metric.buckets}
    in_rules = [
        (str(selector.name).removesuffix("_bucket"), matcher.value)
        for target in every_query()
        for selector in selectors(target.expr)
        for matcher in selector.matchers.matchers
        if matcher.name == "le" and str(selector.name).startswith("gateway_")
    ]

    assert in_rules
    assert [] == [(name, value) for name, value in in_rules if value not in bounds[name]]
    assert set(TTFT_TARGET.values) <= bounds["gateway_time_to_first_token_seconds"]
    assert set(ITL_TARGET.values) <= bounds["gateway_inter_token_latency_seconds"]
