"""
What the page draws, as plain data: axes, series, marks. The script in `page/` knows nothing of load tests.

A chart is a title, a note and one or more views (the reader switches between them); a view is axes, series and marks.
Numbers are rounded to four digits: the page is to be small, and no pixel is finer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from loadtest.histogram import DurationHistogram
from loadtest.report import words

Scale = Literal["linear", "log", "tail"]
Unit = Literal["duration", "clock", "count", "rate", "share"]
Kind = Literal["line", "step", "area", "bars", "dots", "crosses"]

CURVE_POINTS = 220
BARS_PER_DECADE = 24
MARKED = (0.5, 0.95, 0.99)

Number = float | int | None


def axis(
    unit: Unit,
    label: str,
    scale: Scale = "linear",
    *,
    low: float | None = None,
    high: float | None = None,
) -> dict[str, Any]:
    """An axis; without limits it fits its series. `tail` stretches shares towards 1, as latency tails need."""
    return {"unit": unit, "label": label, "scale": scale, "low": number(low), "high": number(high)}


def series(
    name: str,
    colour: str,
    kind: Kind,
    x: Iterable[Number],
    y: Iterable[Number],
    *,
    tips: Sequence[str] = (),
    dashed: bool = False,
) -> dict[str, Any]:
    """Points to draw; None is a hole. `tips` are titles of single points. Colours are the style sheet's names."""
    found = {"name": name, "colour": colour, "kind": kind, "x": [number(v) for v in x], "y": [number(v) for v in y]}
    return {**found, "tips": list(tips), "dashed": dashed}


def view(
    name: str,
    x: dict[str, Any],
    y: dict[str, Any],
    drawn: Sequence[dict[str, Any]],
    *,
    marks: Sequence[dict[str, Any]] = (),
    bands: Sequence[dict[str, Any]] = (),
    heat: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One way to look at a chart. Marks are labelled lines, bands are shaded stretches of the x axis."""
    plain: dict[str, Any] = {"name": name, "x": x, "y": y, "series": list(drawn)}
    return {**plain, "marks": list(marks), "bands": list(bands), "heat": heat}


def chart(
    identity: str, title: str, note: str, views: Sequence[dict[str, Any]], *, height: int = 240, sync: str | None = None
) -> dict[str, Any]:
    """A chart; those with the same `sync` share the cross hair."""
    return {"id": identity, "title": title, "note": note, "views": list(views), "height": height, "sync": sync}


def mark_x(at: float, label: str, colour: str = "muted") -> dict[str, Any]:
    """A vertical line."""
    return {"axis": "x", "at": number(at), "label": label, "colour": colour}


def mark_y(at: float, label: str, colour: str = "bad") -> dict[str, Any]:
    """A horizontal line, such as a limit."""
    return {"axis": "y", "at": number(at), "label": label, "colour": colour}


def number(value: Number) -> Number:
    """Four significant digits; None for what JSON has no number for."""
    if value is None or math.isnan(value) or math.isinf(value):
        return None
    if isinstance(value, int):
        return value
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e9 else rounded


def distribution(
    identity: str,
    title: str,
    note: str,
    curves: Sequence[tuple[str, str, DurationHistogram]],
    limit_s: float | None = None,
) -> dict[str, Any] | None:
    """
    Cumulative share, histogram and tail of (name, colour, histogram)s; percentiles of the first are marked.

    None without a single value.
    """
    curves = [curve for curve in curves if curve[2].count]
    if not curves:
        return None
    first = curves[0][2]
    marks = [mark_x(v, f"{words.percent_name(p)} {words.duration(v)}") for p in MARKED if (v := first.percentile(p))]
    low, high = _limits(curves, limit_s)
    limited = limit_s is not None and low <= limit_s <= high
    if limit_s is not None and limited:
        marks.append(mark_x(limit_s, f"limit {words.duration(limit_s)}", "bad"))
    cumulative, bars, tails = [], [], []
    for k, (name, colour, histogram) in enumerate(curves):
        points = _cumulative(histogram)
        xs, shares = [x for x, _ in points], [share for _, share in points]
        dashed = k > 0
        cumulative.append(series(name, colour, "line", xs, shares, dashed=dashed))
        tails.append(series(name, colour, "line", shares, xs, dashed=dashed))
        middles, uppers, counted = _bars(histogram)
        if k:
            bars.append(series(name, colour, "step", uppers, counted, dashed=True))
        else:
            bars.append(series(name, colour, "bars", middles, counted))
    latency = axis("duration", "", "log", low=low, high=high)
    deepest = max(1 - 1 / max(histogram.count, 10) for _, _, histogram in curves)
    return chart(
        identity,
        title,
        note,
        [
            view("cumulative", latency, axis("share", "share at or under", low=0, high=1), cumulative, marks=marks),
            view("histogram", latency, axis("share", "share", low=0), bars, marks=marks),
            view(
                "tail",
                axis("share", "percentile", "tail", low=0, high=deepest),
                axis("duration", "", "log", low=low, high=high),
                tails,
                marks=[mark_y(limit_s, f"limit {words.duration(limit_s)}")] if limit_s is not None and limited else [],
            ),
        ],
    )


def _cumulative(histogram: DurationHistogram) -> list[tuple[float, float]]:
    """(seconds, share at or under), fewer than `CURVE_POINTS` and every step of the last percent."""
    points, seen = [(histogram.min, 0.0)], 0
    least = histogram.count / CURVE_POINTS
    drawn = 0
    for upper, count in histogram.edges():
        seen += count
        if seen - drawn >= least or seen > 0.99 * histogram.count:
            points.append((min(upper, histogram.max), seen / histogram.count))
            drawn = seen
    return points


def _bars(histogram: DurationHistogram) -> tuple[list[float], list[float], list[float]]:
    """(middle, upper edge, share) of each bar; zero in between."""
    counts: dict[int, int] = {}
    for upper, count in histogram.edges():
        cell = math.floor(math.log10(upper) * BARS_PER_DECADE)
        counts[cell] = counts.get(cell, 0) + count
    cells = range(min(counts), max(counts) + 1)
    middles = [10 ** ((cell + 0.5) / BARS_PER_DECADE) for cell in cells]
    uppers = [10 ** ((cell + 1) / BARS_PER_DECADE) for cell in cells]
    return middles, uppers, [counts.get(cell, 0) / histogram.count for cell in cells]


def _limits(curves: Sequence[tuple[str, str, DurationHistogram]], limit_s: float | None) -> tuple[float, float]:
    """Of a logarithmic axis: at least a factor of four, or a steady server would look wild; a near limit is on it."""
    # From the lowest hundredth: events that came in one read would take decades of the axis for themselves.
    low = min(max(histogram.percentile(0.01) or 0.0, 1e-5) for _, _, histogram in curves)
    high = max(histogram.max for _, _, histogram in curves)
    if limit_s is not None and low / 3 <= limit_s <= high * 3:
        low, high = min(low, limit_s / 1.1), max(high, limit_s * 1.1)
    middle = math.sqrt(low * max(high, low))
    return min(low / 1.05, middle / 2), max(high * 1.05, middle * 2)
