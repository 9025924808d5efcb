"""
The kinds of panels that the pages are made of, each with the same look everywhere.

Every panel has a unit and a description that names its metrics. Colour carries a judgement only where `judged` gives
thresholds; everything else keeps neutral text or the theme's palette.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap as heatmap_builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard, heatmap
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from grafana.promql import Scope

NO_TRAFFIC = "no traffic"
DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")

HEADINGS = {"alertname": "Alert", "gpu": "GPU", "slo": "Objective", "num_gpu_blocks": "Blocks", "instance": "Gateway"}
"""Headings of columns whose label is not a word."""

PanelBuilder = Builder[dashboard.Panel]


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel; `legend` is Grafana's legend format."""

    expr: str
    legend: str = ""


def percentiles(scope: Scope, histogram: str) -> list[Query]:
    """The distribution of what a histogram of the scope observed, in four lines."""
    return [
        Query(scope.quantile(0.5, histogram), "p50"),
        Query(scope.quantile(0.95, histogram), "p95"),
        Query(scope.quantile(0.99, histogram), "p99"),
        Query(scope.mean(histogram), "mean"),
    ]


@dataclass(frozen=True, slots=True)
class Judged:
    """
    Where a value stops being good: at or above `warn` and `bad`, or below them for a value that should be high.

    Args:
        high_is_good: The value is a share of successes, a budget, or the like.
    """

    warn: float
    bad: float
    high_is_good: bool = False

    def steps(self) -> list[dashboard.Threshold]:
        """Grafana's steps: a colour from each value on."""
        if self.high_is_good:
            return [
                dashboard.Threshold(color="red"),
                dashboard.Threshold(value=self.bad, color="orange"),
                dashboard.Threshold(value=self.warn, color="green"),
            ]
        return [
            dashboard.Threshold(color="green"),
            dashboard.Threshold(value=self.warn, color="orange"),
            dashboard.Threshold(value=self.bad, color="red"),
        ]


def tile(
    title: str,
    expr: str,
    unit: str,
    description: str,
    *,
    judged: Judged | None = None,
    decimals: int | None = None,
    no_value: str = NO_TRAFFIC,
    legend: str = "",
    width: int = 3,
    height: int = 4,
) -> PanelBuilder:
    """One figure, as of now: an instant query, so that an idle system does not show its last busy moment."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(no_value)
        .span(width)
        .height(height)
        .graph_mode(common.BigValueGraphMode.NONE)
        .text_mode(common.BigValueTextMode.AUTO)
        .color_mode(common.BigValueColorMode.VALUE if judged else common.BigValueColorMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
        .thresholds(_thresholds(judged))
        .mappings([_nan(no_value)])
        .with_target(_target(Query(expr, legend), 0, instant=True))
    )
    if decimals is not None:
        panel.decimals(decimals)
    return panel


def lines(
    title: str,
    queries: Sequence[Query],
    unit: str,
    description: str,
    *,
    stacked: bool = False,
    judged: Judged | None = None,
    at_most: float | None = None,
    no_value: str = NO_TRAFFIC,
    width: int = 8,
    height: int = 8,
) -> PanelBuilder:
    """
    Values over time.

    Args:
        stacked: Parts of a whole.
        judged: Thresholds, drawn as dashed lines.
        at_most: Fixed top of the axis; 1 for shares.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0)
        .no_value(no_value)
        .span(width)
        .height(height)
        .line_width(1)
        .fill_opacity(30 if stacked else 5)
        .draw_style(common.GraphDrawStyle.LINE)
        .show_points(common.VisibilityMode.AUTO)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
        .thresholds(_thresholds(judged))
        .color_scheme(dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
    )
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if judged is not None:
        panel.thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    if at_most is not None:
        panel.max(at_most)
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index))
    return panel


def heat(title: str, expr: str, unit: str, description: str, *, width: int = 8, height: int = 8) -> PanelBuilder:
    """A histogram's buckets over time; `expr` sums by `le` and nothing else."""
    return (
        heatmap_builders.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(NO_TRAFFIC)
        .span(width)
        .height(height)
        .calculate(False)
        .cell_gap(1)
        .color(
            heatmap_builders.HeatmapColorOptions()
            .mode(heatmap.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .fill("dark-orange")
            .reverse(False)
        )
        .filter_values(heatmap_builders.FilterValueRange().le(1e-9))
        .rows_frame(heatmap_builders.RowsHeatmapOptions().layout(common.HeatmapCellLayout.AUTO))
        .y_axis(heatmap_builders.YAxisConfig().unit(unit).axis_placement(common.AxisPlacement.LEFT))
        .mode(common.TooltipDisplayMode.SINGLE)
        .show_legend()
        .with_target(_target(Query(expr, "{{le}}"), 0, format_="heatmap"))
    )


def timeline(
    title: str,
    query: Query,
    states: Mapping[int, tuple[str, str]],
    description: str,
    *,
    width: int = 24,
    height: int = 8,
) -> PanelBuilder:
    """States over time, one bar for each series; `states` gives each value's word and colour."""
    mapping = dashboard.ValueMap(
        options={
            str(value): dashboard.ValueMappingResult(text=text, color=colour, index=index)
            for index, (value, (text, colour)) in enumerate(states.items())
        }
    )
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("short")
        .no_value("no workers")
        .span(width)
        .height(height)
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.8)
        .mappings([mapping])
        .thresholds(_thresholds(None))
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.SINGLE).sort(common.SortOrder.NONE))
        .with_target(_target(query, 0))
    )


@dataclass(frozen=True, slots=True)
class Column:
    """
    One column of a table: an instant query whose labels are the table's rows.
    """

    title: str
    expr: str
    unit: str
    judged: Judged | None = None


def grid(
    title: str,
    rows: Sequence[str],
    columns: Sequence[Column],
    description: str,
    *,
    links: Mapping[str, str] | None = None,
    no_value: str = "",
    width: int = 24,
    height: int = 7,
) -> PanelBuilder:
    """
    A table with one row for each combination of the labels in `rows`, as of now.

    Args:
        rows: Label names, in order; every column's query must keep exactly these.
        links: By label: the uid of the page that a click on its cell opens, with that label's variable set to the cell.
    """
    hidden: dict[str, object] = {"Time": True}
    names: dict[str, object] = {label: HEADINGS.get(label, label.replace("_", " ").capitalize()) for label in rows}
    order: dict[str, object] = {label: index for index, label in enumerate(rows)}
    for index, column in enumerate(columns):
        # With one query Grafana calls the value column "Value", with several "Value #A" and so on.
        field = f"Value #{_reference(index)}" if len(columns) > 1 else "Value"
        names[field] = column.title
        order[field] = len(rows) + index
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("short")
        .no_value(no_value)
        .span(width)
        .height(height)
        .show_header(True)
        .filterable(False)
        .thresholds(_thresholds(None))
        .with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="organize",
                options={"excludeByName": hidden, "indexByName": order, "renameByName": names},
            )
        )
    )
    for index, column in enumerate(columns):
        panel.with_target(_target(Query(column.expr), index, instant=True, format_="table"))
        panel.override_by_name(column.title, _column_properties(column))
    for label, uid in (links or {}).items():
        query = f"${{__url_time_range}}&${{datasource:queryparam}}&var-{label}=${{__value.raw}}"
        link = {"title": f"Only this {label}", "url": f"/d/{uid}?{query}", "targetBlank": False}
        panel.override_by_name(str(names[label]), [dashboard.DynamicConfigValue(id_val="links", value=[link])])
    return panel


def _column_properties(column: Column) -> list[dashboard.DynamicConfigValue]:
    properties = [dashboard.DynamicConfigValue(id_val="unit", value=column.unit)]
    if column.judged is not None:
        steps = [{"color": step.color, "value": step.value} for step in column.judged.steps()]
        properties += [
            dashboard.DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": steps}),
            dashboard.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
        ]
    return properties


def _target(
    query: Query,
    index: int,
    *,
    instant: bool = False,
    format_: Literal["time_series", "heatmap", "table"] = "time_series",
) -> prometheus.Dataquery:
    target = (
        prometheus.Dataquery()
        .datasource(DATASOURCE)
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
        .format(PromQueryFormat(format_))
        .editor_mode(QueryEditorMode.CODE)
        .ref_id(_reference(index))
    )
    return target.instant() if instant else target.range()


def _reference(index: int) -> str:
    return chr(ord("A") + index)


def _thresholds(judged: Judged | None) -> dashboard_builders.ThresholdsConfig:
    steps = judged.steps() if judged else [dashboard.Threshold(color="text")]
    return dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _nan(text: str) -> dashboard.ValueMapping:
    """What a tile shows should a NaN reach it after all."""
    return dashboard.SpecialValueMap(
        options=dashboard.DashboardSpecialValueMapOptions(
            match=dashboard.SpecialValueMatch.NULL_AND_NAN,
            result=dashboard.ValueMappingResult(text=text),
        )
    )
