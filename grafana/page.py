"""
A page: sections of panels, the variables above them, the links between pages, and its JSON.

Panels flow from left to right over Grafana's 24 columns; a collapsed section keeps its panels inside its row, as
Grafana does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from grafana.panels import DATASOURCE, PanelBuilder

TAG = "vllm-gateway"
COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Section:
    """
    Panels under a common heading.

    Args:
        title: Empty for the panels at the very top, which need no heading.
        collapsed: For features that many installations do not use.
    """

    title: str
    panels: Sequence[PanelBuilder]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """
    A choice above the page: the values of a label, all of them unless some are picked.

    Args:
        metric: Series to take the values from, with the matchers of the variables before it.
        open_ended: All means whatever there is (`.*`), not only what the choice lists. Not for the scrape job: `up` and
            the like exist for every job.
    """

    name: str
    label: str
    metric: str
    description: str
    open_ended: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice among fixed values, the first one chosen."""

    name: str
    label: str
    values: Sequence[str]
    description: str


@dataclass(frozen=True, slots=True)
class Marker:
    """Events drawn into every panel: the moments at which `expr` has a sample."""

    name: str
    expr: str
    title: str
    colour: str


@dataclass(frozen=True, slots=True)
class Page:
    """One dashboard. `uid` is its address for ever: links and bookmarks hold it."""

    uid: str
    title: str
    description: str
    sections: Sequence[Section]
    variables: Sequence[Variable | Choice]
    markers: Sequence[Marker] = field(default=())

    @property
    def file_name(self) -> str:
        """In `grafana/dashboards`."""
        return f"{self.uid.removeprefix('vllm-gateway-')}.json"

    def to_json(self) -> str:
        """The dashboard as Grafana's file provisioning takes it; the same page always gives the same text."""
        page = (
            builders.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags([TAG])
            .timezone("browser")
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
            .time("now-1h", "now")
            .refresh("10s")
            .readonly()
            .link(
                builders.DashboardLink("vllm-gateway")
                .type(dashboard.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(False)
                .include_vars(True)
                .keep_time(True)
                .target_blank(False)
                .icon("external link")
                .tooltip("")
                .url("")
            )
            .with_variable(_datasource())
        )
        for variable in self.variables:
            page.with_variable(_choice(variable) if isinstance(variable, Choice) else _labels(variable))
        for marker in self.markers:
            page.annotation(_annotation(marker))
        model = page.build()
        model.panels = _placed(self.sections)
        content = json.loads(json.dumps(model, cls=JSONEncoder))
        content["id"] = None
        _drop_what_some_releases_lack(content)
        for annotation, marker in zip(content["annotations"].get("list", []), self.markers, strict=True):
            # Prometheus's own fields of an annotation, which the SDK's model lacks.
            annotation |= {"titleFormat": marker.title, "step": "15s"}
        return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _drop_what_some_releases_lack(content: dict[str, Any]) -> None:
    """
    Take out what the SDK writes unasked: defaults of options that not all of Grafana 10.4 to 13 know, and the fields of
    interval variables on variables of every kind.
    """
    for variable in content["templating"]["list"]:
        for name in ("auto", "auto_min", "auto_count", "allowCustomValue"):
            variable.pop(name, None)
    for outer in content["panels"]:
        for panel in outer.get("panels", []) or [outer]:
            for option in ("percentChangeColorMode", "selectionMode", "perPage", "footer"):
                panel.get("options", {}).pop(option, None)


def _placed(sections: Sequence[Section]) -> list[dashboard.Panel | dashboard.RowPanel]:
    """Every panel with its place and number."""
    placed: list[dashboard.Panel | dashboard.RowPanel] = []
    number, top = 0, 0
    for section in sections:
        panels = [builder.build() for builder in section.panels]
        row: dashboard.RowPanel | None = None
        if section.title:
            number += 1
            row = dashboard.RowPanel(
                title=section.title,
                collapsed=section.collapsed,
                id_val=number,
                grid_pos=dashboard.GridPos(h=1, w=COLUMNS, x=0, y=top),
                panels=[],
            )
            placed.append(row)
            top += 1
        left, tallest = 0, 0
        for panel in panels:
            number += 1
            size = panel.grid_pos or dashboard.GridPos()
            if left + size.w > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            panel.id_val = number
            panel.grid_pos = dashboard.GridPos(h=size.h, w=size.w, x=left, y=top)
            left, tallest = left + size.w, max(tallest, size.h)
        top += tallest
        if row is not None and section.collapsed:
            row.panels = panels
        else:
            placed += panels
    return placed


def _datasource() -> builders.DatasourceVariable:
    return (
        builders.DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .description("The Prometheus that scrapes the gateway.")
        .current(dashboard.VariableOption(selected=False, text="", value=""))
    )


def _labels(variable: Variable) -> builders.QueryVariable:
    query = f"label_values({variable.metric}, {variable.name})"
    built = (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .description(variable.description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery", "qryType": 1})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
    return built.all_value(".*") if variable.open_ended else built


def _choice(choice: Choice) -> builders.CustomVariable:
    options = [
        dashboard.VariableOption(selected=index == 0, text=value, value=value)
        for index, value in enumerate(choice.values)
    ]
    return (
        builders.CustomVariable(choice.name)
        .label(choice.label)
        .description(choice.description)
        .values(",".join(choice.values))
        .options(options)
        .current(options[0])
        .multi(False)
        .include_all(False)
    )


def _annotation(marker: Marker) -> builders.AnnotationQuery:
    return (
        builders.AnnotationQuery()
        .name(marker.name)
        .datasource(DATASOURCE)
        .enable(True)
        .hide(False)
        .icon_color(marker.colour)
        .expr(marker.expr)
    )
