"""What every dashboard keeps to; the rules of Grafana's dashboard-linter and some of our own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from gateway.types import CircuitState, WorkerState
from grafana.generate import generated
from grafana.pages import routing, workers
from tests.grafana.reading import FOLDER, annotation_targets, dashboards, panel_targets, panels, selectors, substituted

DASHBOARDS = dashboards()
EACH = pytest.mark.parametrize("page", DASHBOARDS)
CHOSEN = {"type": "prometheus", "uid": "${datasource}"}
WINDOWS = re.compile(r"\[([^\]]+)\]")
SINCE_ALWAYS = ("_total", "_count", "_sum", "_bucket")
GUARDED = re.compile(r"> 0\s*$")
ACROSS = {"up", "scrape_duration_seconds", "ALERTS"}
"""Prometheus's own series are asked for by other labels than a page's."""


def nodes(expr: str) -> Iterator[promql_parser.Expr]:
    """Every node of an expression."""
    found: list[promql_parser.Expr] = []

    def visit(node: promql_parser.Expr) -> None:
        found.append(node)

    promql_parser.walk(promql_parser.parse(substituted(expr)), visit)
    yield from found


def within_parentheses(text: str) -> str:
    """What the parenthesis that opens the text encloses."""
    depth = 0
    for end, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return text[1:end]
    raise AssertionError(f"not closed: {text}")


def test_the_committed_files_are_what_the_code_makes() -> None:
    """And there is none that no page makes."""
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}

    assert generated() == committed


def test_the_generator_gives_the_same_text_every_time() -> None:
    """Else `--check` would fail by chance."""
    assert dict(generated()) == dict(generated())


@EACH
def test_a_dashboard_can_be_provisioned_anywhere(page: str) -> None:
    """Stable uid, no id of one server, no inputs to answer, classic schema, relative time, not edited in place."""
    dashboard = DASHBOARDS[page]

    assert f"vllm-gateway-{page}" == dashboard["uid"]
    assert dashboard["id"] is None
    assert dashboard["schemaVersion"] in (39, 40, 41)
    assert dashboard["editable"] is False
    assert {"__inputs", "__requires", "version", "gnetId"}.isdisjoint(dashboard)
    assert {"from": "now-1h", "to": "now"} == dashboard["time"]
    assert "vllm-gateway" in dashboard["tags"]
    assert dashboard["title"]
    assert dashboard["description"]


def test_uids_and_titles_are_unique() -> None:
    """Grafana replaces a dashboard by another of the same uid without a word."""
    assert len(DASHBOARDS) == len({dashboard["uid"] for dashboard in DASHBOARDS.values()})
    assert len(DASHBOARDS) == len({dashboard["title"] for dashboard in DASHBOARDS.values()})


@EACH
def test_everything_asks_the_chosen_data_source(page: str) -> None:
    """Panels, queries, variables and markers; no server's uid is written down."""
    dashboard = DASHBOARDS[page]
    first, *others = dashboard["templating"]["list"]
    asked: list[Any] = [panel["datasource"] for panel in panels(dashboard)]
    asked += [target["datasource"] for panel in panels(dashboard) for target in panel["targets"]]
    asked += [variable["datasource"] for variable in others if variable["type"] == "query"]
    asked += [annotation["datasource"] for annotation in dashboard["annotations"].get("list", [])]

    assert ("datasource", "datasource", "prometheus") == (first["name"], first["type"], first["query"])
    assert [CHOSEN] * len(asked) == asked


@EACH
def test_variables_are_chained_and_offer_all(page: str) -> None:
    """Each is narrowed by those before it, takes several values, and All means what exists later, too."""
    before: list[str] = []
    for variable in DASHBOARDS[page]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        assert variable["multi"]
        assert variable["includeAll"]
        # `up` exists for every job: All must not mean more than the jobs that are listed.
        assert (None if variable["name"] == "job" else ".*") == variable.get("allValue")
        assert {"text": ["All"], "value": ["$__all"], "selected": True} == variable["current"]
        query = variable["query"]["query"]
        assert [] == [name for name in before if f'{name}=~"${name}"' not in query], variable["name"]
        assert variable["description"]
        before.append(variable["name"])
    assert "job" == before[0]
    assert {"instance", "model"} & set(before)


@EACH
def test_every_variable_is_used_and_every_used_one_exists(page: str) -> None:
    """A choice without effect misleads, and an unknown one is sent to Prometheus as it stands."""
    dashboard = DASHBOARDS[page]
    names = {variable["name"] for variable in dashboard["templating"]["list"]} - {"datasource"}
    exprs = [target.expr for target in panel_targets(page, dashboard)]
    used = {name for expr in exprs for name in re.findall(r"\$(\w+)", expr) if not name.startswith("__")}

    assert names == used


@EACH
def test_every_panel_has_a_title_a_unit_words_for_no_value_and_a_description(page: str) -> None:
    """The description names every metric of the panel in backquotes, so that it can be looked up."""
    for panel in panels(DASHBOARDS[page]):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert defaults["unit"], panel["title"]
        assert "noValue" in defaults, panel["title"]
        named = set(re.findall(r"`([^` ]+)`", panel["description"]))
        asked = {
            re.sub(r"_(bucket|sum|count)$", "", str(selector.name))
            for target in panel["targets"]
            for selector in selectors(target["expr"])
        }
        assert set() == asked - named, panel["title"]


@EACH
def test_titles_are_unique_within_a_dashboard(page: str) -> None:
    """Two panels of one title cannot be told apart in a message."""
    titles = [panel["title"] for panel in panels(DASHBOARDS[page])]

    assert sorted(set(titles)) == sorted(titles)


@EACH
def test_every_query_is_promql_within_the_pages_choice(page: str) -> None:
    """It parses, and its series are narrowed to the chosen job; the load test page looks at gateways beside it."""
    for target in panel_targets(page, DASHBOARDS[page]):
        for selector in selectors(target.expr):
            name = str(selector.name)
            matched = {matcher.name for matcher in selector.matchers.matchers}
            beside = page == "loadtest" and not name.startswith("loadtest_")
            processes = page == "gpu" and name.startswith("process_")
            if name in ACROSS or name.startswith("slo:") or beside or processes:
                continue
            assert "job" in matched, f"{target.name}: {name}"


@EACH
def test_windows_are_grafanas_own(page: str) -> None:
    """A fixed window is empty when scrapes are slow and wastes resolution when they are fast."""
    targets = [*panel_targets(page, DASHBOARDS[page]), *annotation_targets(page, DASHBOARDS[page])]
    windows = {window for target in targets for window in WINDOWS.findall(target.expr)}

    assert windows <= {"$__rate_interval", "$__range"}


@EACH
def test_counters_are_shown_as_rates(page: str) -> None:
    """A counter's own value is the age of a process. The text before its selector must open a rate or an increase."""
    for target in panel_targets(page, DASHBOARDS[page]):
        for found in re.finditer(r"([a-z_]+\()?\b((?:gateway|vllm|loadtest|slo)[\w:]*)\{", target.expr):
            if found[2].endswith(SINCE_ALWAYS):
                assert found[1] in ("rate(", "increase("), f"{target.name}: {found[2]}"


@EACH
def test_quantiles_are_of_sums_and_say_nothing_of_nothing(page: str) -> None:
    """`histogram_quantile(q, sum by (le, ...) (rate(...)))`, and NaN is filtered out."""
    for target in panel_targets(page, DASHBOARDS[page]):
        for node in nodes(target.expr):
            if isinstance(node, promql_parser.Call) and node.func.name == "histogram_quantile":
                argument = node.args[1]
                assert isinstance(argument, promql_parser.AggregateExpr), target.name
                assert argument.modifier is not None
                assert "le" in argument.modifier.labels
        assert target.expr.count("histogram_quantile") == target.expr.count(" >= 0"), target.name


@EACH
def test_nothing_is_divided_by_nothing(page: str) -> None:
    """Every denominator is filtered with `> 0`; a budget is a constant."""
    for target in panel_targets(page, DASHBOARDS[page]):
        for found in re.finditer(r" / (?P<rest>.*)", target.expr, re.DOTALL):
            rest = found["rest"]
            if rest.startswith("on (slo) group_left () max by (slo) (slo:budget:ratio)"):
                continue
            rest = rest.removeprefix("on () group_left () ")
            assert rest.startswith("("), target.name
            assert GUARDED.search(within_parentheses(rest)), target.name


@EACH
def test_colour_is_a_judgement(page: str) -> None:
    """Thresholds only where they are drawn or colour the value; everything else has one neutral step."""
    for panel in panels(DASHBOARDS[page]):
        defaults = panel["fieldConfig"]["defaults"]
        steps = defaults.get("thresholds", {"steps": []})["steps"]
        judged = len(steps) > 1
        drawn = panel["options"].get("colorMode") == "value" or "thresholdsStyle" in defaults.get("custom", {})
        assert judged == drawn, panel["title"]
        if not judged:
            assert {"text"} >= {step["color"] for step in steps}, panel["title"]


@EACH
def test_legends_name_labels_that_the_query_keeps(page: str) -> None:
    """A legend of an aggregated-away label is empty, and all lines look alike."""
    for target in panel_targets(page, DASHBOARDS[page]):
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target.expr))))
        assert set(re.findall(r"{{(\w+)}}", target.legend)) <= kept, target.name
        if "{{" not in target.legend and not target.instant:
            outer = re.match(r"(?:\(|histogram_quantile\([\d.]+, )?(?:sum|max|min|avg) by \(([^)]*)\)", target.expr)
            assert outer is None or {"le"} >= set(outer[1].split(", ")), target.name


@EACH
def test_panels_do_not_overlap_and_ids_are_unique(page: str) -> None:
    """Also inside collapsed rows, whose panels begin below the row."""
    dashboard = DASHBOARDS[page]
    everything = [*panels(dashboard), *(panel for panel in dashboard["panels"] if panel["type"] == "row")]
    cells: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & mine, panel["title"]
        cells |= mine

    assert len(everything) == len({panel["id"] for panel in everything})


@EACH
def test_pages_link_to_each_other_with_time_and_variables(page: str) -> None:
    """By tag, so that a new page needs no change to the others; links in tables lead to pages that exist."""
    (link,) = DASHBOARDS[page]["links"]

    assert ("dashboards", ["vllm-gateway"], True, True) == (
        link["type"],
        link["tags"],
        link["keepTime"],
        link["includeVars"],
    )
    uids = {dashboard["uid"] for dashboard in DASHBOARDS.values()}
    assert set(re.findall(r'"/d/([\w-]+)', json.dumps(DASHBOARDS[page]))) <= uids


@EACH
def test_heat_maps_get_buckets_and_lines_begin_at_zero(page: str) -> None:
    """Grafana turns cumulative buckets into cells only in its heatmap format."""
    for panel in panels(DASHBOARDS[page]):
        if panel["type"] == "heatmap":
            (target,) = panel["targets"]
            assert "heatmap" == target["format"]
            assert target["expr"].startswith("sum by (le) (increase(")
        if panel["type"] == "timeseries":
            assert 0 == panel["fieldConfig"]["defaults"]["min"]


@EACH
def test_every_dashboard_has_markers_of_what_happened_to_workers(page: str) -> None:
    """Taken from metrics, not from somebody's notes."""
    names = {annotation["name"] for annotation in DASHBOARDS[page]["annotations"]["list"]}

    assert names == {"Worker restarts", "Worker drains"}


def test_every_state_has_a_word_and_a_colour() -> None:
    """A state added to the code and not to the timeline would show as a number."""
    assert [str(state) for state in WorkerState] == [word for word, _ in workers.STATES.values()]
    assert [str(state).replace("_", " ") for state in CircuitState] == [word for word, _ in routing.CIRCUIT.values()]
