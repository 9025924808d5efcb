"""Reads the committed dashboards as Grafana would: panels, queries, variables, annotations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "grafana" / "dashboards"
RECORDED = Path(__file__).parent / "recorded"

SUBSTITUTES = {
    "$__rate_interval": "20s",
    "$__range": "5m",
    "$ttft_target": "1.0",
    "$itl_target": "0.1",
}
"""What stands for Grafana's own variables and for the choices; label variables become `.*`, as All does."""


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a dashboard: of a panel, a variable or an annotation."""

    page: str
    place: str
    expr: str
    instant: bool = False
    legend: str = ""

    @property
    def job(self) -> str:
        """What All stands for in the page's choice of jobs: those that have its metrics."""
        return {"engines": "vllm", "loadtest": "loadtest"}.get(self.page, "gateway")

    @property
    def name(self) -> str:
        """For messages and test ids."""
        return f"{self.page}: {self.place}"


def dashboards() -> Mapping[str, dict[str, Any]]:
    """Every committed dashboard by file name without ending."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel that shows something, those in collapsed rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def panel_targets(page: str, dashboard: Mapping[str, Any]) -> Iterator[Target]:
    """The queries of all panels, as written."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            place = f"{panel['title']} {target['refId']}"
            yield Target(page, place, target["expr"], target.get("instant", False), target["legendFormat"])


def annotation_targets(page: str, dashboard: Mapping[str, Any]) -> Iterator[Target]:
    """The queries of the event markers."""
    for annotation in dashboard["annotations"].get("list", []):
        yield Target(page, f"annotation {annotation['name']}", annotation["expr"])


def every_target() -> list[Target]:
    """The queries of all panels and markers of all dashboards."""
    return [
        target
        for page, dashboard in dashboards().items()
        for target in (*panel_targets(page, dashboard), *annotation_targets(page, dashboard))
    ]


def variable_queries(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Of each query variable: its name, the selector of series, and the label whose values it offers."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert found is not None, variable["query"]
        yield variable["name"], found[1], found[2]


def substituted(expr: str, chosen: Mapping[str, str] | None = None) -> str:
    """The query as Grafana sends it; a variable that is not in `chosen` stands on All."""
    for variable, value in SUBSTITUTES.items():
        expr = expr.replace(variable, value)
    for name, value in (chosen or {}).items():
        expr = expr.replace(f"${name}", value)
    return re.sub(r"\$(\w+)", ".*", expr)


def selectors(expr: str) -> Iterator[promql_parser.VectorSelector]:
    """Every vector selector of an expression; raises ValueError when it is not PromQL."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)

    promql_parser.walk(promql_parser.parse(substituted(expr)), visit)
    yield from found
