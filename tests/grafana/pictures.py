"""
Contact sheets of the dashboards, drawn from what a real Prometheus answered: `python -m tests.grafana.pictures FOLDER`.

They show that every panel has data and roughly what it says. Grafana draws better.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from tests.grafana.live import Series
from tests.grafana.observed import observed
from tests.grafana.reading import dashboards, every_target, panels

Answers = Mapping[str, list[Series]]

INK, PAPER, CARD, EDGE, FAINT = "#d8d9da", "#111217", "#181b1f", "#2c3235", "#6e7178"
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#e0b400", "#1f60c4", "#fa6400")
STATE_COLOURS = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2", "text": "#8e9198"}
CELL_W, CELL_H = 0.62, 0.24
"""Inches of one unit of Grafana's grid."""
DOTS = 90


def draw(page: str, dashboard: Mapping[str, Any], answers: Answers, file: Path) -> None:
    """One picture of all panels, each in its place."""
    rows = {panel["gridPos"]["y"]: panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"}
    shown = list(panels(dashboard))
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown)
    figure = Figure(figsize=(24 * CELL_W, height * CELL_H + 0.5), facecolor=PAPER)
    figure.text(0.01, 1 - 0.12 / (height * CELL_H + 0.5), dashboard["title"], color=INK, fontsize=13, va="top")
    full = height * CELL_H + 0.5
    for y, title in rows.items():
        figure.text(0.006, 1 - (0.5 + (y + 0.2) * CELL_H) / full, title, color=INK, fontsize=9, va="top", weight="bold")
    for panel in shown:
        place = panel["gridPos"]
        top = 0.5 + place["y"] * CELL_H
        box = (
            place["x"] / 24 + 0.003,
            1 - (top + place["h"] * CELL_H - 0.05) / full,
            place["w"] / 24 - 0.006,
            (place["h"] * CELL_H - 0.08) / full,
        )
        series = [
            (target["refId"] if panel["type"] == "table" else target["legendFormat"], one)
            for target in panel["targets"]
            for one in answers.get(f"{page}: {panel['title']} {target['refId']}", [])
        ]
        _panel(figure, box, panel, series)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DOTS, facecolor=PAPER)
    # A palette is enough, and a quarter of the bytes.
    Image.open(drawn).convert("RGB").quantize(64, Image.Quantize.FASTOCTREE).save(file, optimize=True)


def _panel(
    figure: Figure,
    box: tuple[float, float, float, float],
    panel: Mapping[str, Any],
    series: Sequence[tuple[str, Series]],
) -> None:
    x, y, width, height = box
    figure.add_artist(Rectangle((x, y), width, height, facecolor=CARD, edgecolor=EDGE, linewidth=0.6, zorder=-1))
    middle = x + width / 2
    figure.text(x + 0.004, y + height * 0.97, panel["title"], color=INK, fontsize=6.5, va="top")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if not any(one.points for _, one in series):
        nothing = panel["fieldConfig"]["defaults"]["noValue"]
        figure.text(middle, y + height * 0.4, nothing, color=FAINT, fontsize=7, ha="center")
        return
    kind = panel["type"]
    if kind == "stat":
        texts = [_shown(one.points[-1][1], unit) for _, one in series]
        names = [_legend(legend, one) for legend, one in series] if len(series) > 1 else [""]
        text = "  ".join(f"{name} {value}".strip() for name, value in zip(names, texts, strict=True))
        size = 12 if len(text) < 14 else 7
        figure.text(middle, y + height * 0.4, text, color=INK, fontsize=size, ha="center", va="center")
        return
    left = 0.01 if kind == "table" else 0.09
    axes = figure.add_axes((x + left * width, y + 0.1 * height, width * (0.99 - left), height * 0.76), facecolor=CARD)
    {"heatmap": _heat, "state-timeline": _states, "table": _table}.get(kind, _lines)(axes, panel, series, unit)


def _lines(axes: Axes, panel: Mapping[str, Any], series: Sequence[tuple[str, Series]], unit: str) -> None:
    end = max(at for _, one in series for at, _ in one.points)
    stacked = "stacking" in panel["fieldConfig"]["defaults"]["custom"]
    for index, (legend, one) in enumerate(series[:10]):
        times = [at - end for at, _ in one.points]
        values = [value for _, value in one.points]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(
            times,
            values,
            color=colour,
            linewidth=0.9,
            marker="." if len(times) < 3 else None,
            markersize=3,
            label=_legend(legend, one)[:22],
        )
        if stacked:
            axes.fill_between(times, values, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(
            loc="upper left", fontsize=4.5, frameon=False, labelcolor=INK, ncols=3, handlelength=1, borderpad=0.1
        )
    _dress(axes, unit)


def _states(axes: Axes, panel: Mapping[str, Any], series: Sequence[tuple[str, Series]], unit: str) -> None:
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    end = max(at for _, one in series for at, _ in one.points)
    for row, (_, one) in enumerate(series):
        for at, value in one.points:
            state = options[str(int(value))]
            axes.barh(
                row, 1.0, left=at - end, height=0.8, color=STATE_COLOURS.get(state["color"].split("-")[-1], "#b877d9")
            )
    axes.set_xticks([])
    axes.set_yticks(range(len(series)), [_legend(legend, one) for legend, one in series], fontsize=5, color=INK)
    axes.tick_params(colors=FAINT, labelsize=5, length=1)
    axes.invert_yaxis()


def _heat(axes: Axes, panel: Mapping[str, Any], series: Sequence[tuple[str, Series]], unit: str) -> None:
    rows = sorted((one for _, one in series), key=lambda one: float(one.labels["le"]))
    times = sorted({at for one in rows for at, _ in one.points})
    table = [[dict(one.points).get(at, 0.0) for at in times] for one in rows]
    single = [
        table[0],
        *([max(0.0, b - a) for a, b in zip(low, high, strict=True)] for low, high in itertools.pairwise(table)),
    ]
    used = [index for index, row in enumerate(single) if any(row)] or [0]
    low, high = max(0, used[0] - 1), used[-1] + 2
    axes.imshow(
        [[math.sqrt(cell) for cell in row] for row in single[low:high]],
        aspect="auto",
        origin="lower",
        cmap="inferno",
        interpolation="nearest",
        extent=(times[0] - times[-1], 0, 0, len(single[low:high])),
    )
    labels = [rows[index].labels["le"] for index in range(low, min(high, len(rows)))]
    step = max(1, len(labels) // 4)
    axes.set_xticks([])
    axes.set_yticks([i + 0.5 for i in range(0, len(labels), step)], labels[::step], fontsize=5, color=INK)
    axes.tick_params(colors=FAINT, labelsize=5, length=1)


def _table(axes: Axes, panel: Mapping[str, Any], series: Sequence[tuple[str, Series]], unit: str) -> None:
    axes.set_axis_off()
    organised = panel["transformations"][1]["options"]
    fields = sorted(organised["indexByName"], key=organised["indexByName"].__getitem__)
    keys = [field for field in fields if not field.startswith("Value")]
    values = [field for field in fields if field.startswith("Value")]
    units = {
        override["matcher"]["options"]: override["properties"][0]["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["properties"][0]["id"] == "unit"
    }
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for reference, one in series:
        column = f"Value #{reference}" if len(values) > 1 else "Value"
        key = tuple(one.labels.get(label, "") for label in keys)
        rows.setdefault(key, {})[column] = _shown(one.points[-1][1], units[organised["renameByName"][column]])
    cells = [[*key, *(row.get(field, "") for field in values)] for key, row in sorted(rows.items())][:12]
    table = axes.table(
        cellText=cells,
        colLabels=[organised["renameByName"][field] for field in fields],
        bbox=(0, 0, 1, 1),
        cellLoc="left",
    )
    table.auto_set_font_size(False)
    for cell in table.get_celld().values():
        cell.set_facecolor(CARD)
        cell.set_edgecolor(EDGE)
        cell.set_text_props(color=INK, fontsize=6, clip_on=True)


def _dress(axes: Axes, unit: str) -> None:
    # Every sheet covers the same minute, and ticks are what drawing takes longest for.
    axes.set_xticks([])
    axes.locator_params(axis="y", nbins=3)
    axes.tick_params(colors=FAINT, labelsize=5, length=1, pad=1)
    axes.grid(color=EDGE, linewidth=0.4)
    axes.yaxis.set_major_formatter(lambda value, _: _shown(value, unit))
    for spine in axes.spines.values():
        spine.set_visible(False)


def _legend(legend: str, one: Series) -> str:
    if legend == "__auto":
        return ""
    return re.sub(r"{{(\w+)}}", lambda found: one.labels.get(found[1], ""), legend)


def _shown(value: float, unit: str) -> str:
    """About as Grafana words it."""
    if unit == "s":
        for factor, word in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if abs(value) * factor >= 1 or word == "µs":
                return f"{value * factor:.3g} {word}"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "bytes":
        return f"{value / 2**30:.3g} GiB"
    if unit == "bool_yes_no":
        return "Yes" if value else "No"
    word = {"reqps": " req/s", "cps": " /s", "celsius": " °C", "watt": " W"}.get(unit, "")
    if unit.startswith("count:"):
        word = " " + unit.removeprefix("count:")
    return f"{value:.3g}{word}" if abs(value) < 1000 else f"{value / 1000:.3g}K{word}"


def main(arguments: Sequence[str]) -> int:
    """Starts the fleet, asks every query, draws every page."""
    folder = Path(arguments[0])
    with tempfile.TemporaryDirectory() as scratch, observed(Path(scratch)) as seen:
        answers = {target.name: seen.prometheus.answer(target) for target in every_target()}
    for page, dashboard in dashboards().items():
        draw(page, dashboard, answers, folder / f"dashboard-{page}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
