"""Which charts a report has, and what is in them: latency, timeline, gaps, load. Pure: results in, plain data out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.health import median_ttft_s, send_lag_limit_s
from loadtest.ledger import RequestRecord
from loadtest.outcomes import Outcome
from loadtest.report import words
from loadtest.report.charts import axis, chart, distribution, mark_y, series, view
from loadtest.report.figures import Figures, bounds, figures
from loadtest.report.series import (
    HeatMap,
    TimelineRow,
    failed_records,
    gap_heat_map,
    in_flight_at_sending,
    load_points,
    thinned,
    timeline_rows,
)
from loadtest.result import RunResult

ROWS = 240
"""Of the timeline, at most: more would be less than a pixel each on a telephone."""
POINTS = 1200

Chart = dict[str, Any]

_CURVES = {
    "ttft": "from sending",
    "ttft_from_schedule": "from schedule",
    "ttfvt": "from sending, to visible text",
    "gaps": "per event",
    "itl": "per token",
    "tpot": "per request",
    "e2e": "from schedule",
    "service": "from sending",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One result, prepared for drawing."""

    label: str
    result: RunResult
    figures: Figures
    rows: list[TimelineRow]

    @classmethod
    def of(cls, label: str, result: RunResult) -> Run:
        """Computes what all sections share."""
        return cls(label, result, figures(result), timeline_rows(result, ROWS))


def latency_charts(run: Run, other: Run | None) -> list[Chart]:
    """Distributions of the steady window: TTFT, gaps, TPOT, end to end."""
    limits = bounds(run.result)
    found = [
        _distribution("ttft", "Time to first token", run, other, ("ttft", "ttft_from_schedule", "ttfvt"), limits),
        _distribution("gaps", "Gap between token events", run, other, ("gaps", "itl"), limits),
        _distribution("tpot", "Time per output token", run, other, ("tpot",), limits),
        _distribution("e2e", "End to end", run, other, ("e2e", "service"), limits),
    ]
    return [one for one in found if one is not None]


def _distribution(
    identity: str, title: str, run: Run, other: Run | None, names: Sequence[str], limits: dict[str, float]
) -> Chart | None:
    first = run.figures.row(names[0])
    curves = []
    for name, colour in zip(names, ("c1", "c2", "c3"), strict=False):
        row = run.figures.row(name)
        same = name != names[0] and row.histogram.buckets == first.histogram.buckets
        if not same and (other is None or name == names[0]):
            curves.append((_CURVES[name] if other is None else run.label, colour, row.histogram))
    if other is not None:
        curves.append((other.label, "c2", other.figures.row(names[0]).histogram))
    return distribution(f"latency-{identity}", title, first.meaning, curves, limits.get(identity))


def timeline_charts(run: Run) -> list[Chart]:
    """The run second by second; all share one time axis and one cross hair."""
    if not run.rows:
        return []
    charts = [_rates(run), _in_flight(run)]
    # What is not streamed has no first token: then whole answers are what there is to see.
    charts.append(_first_tokens(run) if run.result.ledger.token_events else _answers(run))
    if any(row.output_tokens_per_s for row in run.rows):
        charts.append(_tokens(run))
    if any(row.kv_cache_usage or row.prefix_hit_share for row in run.rows):
        charts.append(_cache(run))
    return [*charts, _send_lag(run)]


def _over_time(
    run: Run, identity: str, title: str, note: str, y: dict[str, Any], drawn: Sequence[Chart], **more: Any
) -> Chart:
    start, end = run.figures.window
    bands = [{"from": start, "to": end, "label": "steady window"}] if run.figures.steady else []
    x = axis("clock", "", low=0, high=run.rows[-1].end_s)
    return chart(f"time-{identity}", title, note, [view("", x, y, drawn, bands=bands, **more)], height=190, sync="time")


def _rates(run: Run) -> Chart:
    rows, at = run.rows, [row.middle_s for row in run.rows]
    lost = [row.failed_per_s + row.unsent_per_s for row in rows]
    drawn = [
        series("due", "muted", "line", at, [row.scheduled_per_s for row in rows], dashed=True),
        series("answered", "c1", "line", at, [row.ok_per_s for row in rows]),
    ]
    if any(lost):
        drawn.append(series("failed or unsent", "bad", "bars", at, lost))
    if any(row.cancelled_per_s for row in rows):
        drawn.append(series("cancelled by the scenario", "c4", "line", at, [row.cancelled_per_s for row in rows]))
    return _over_time(run, "rate", "Requests per second", "due and ended", axis("rate", "requests/s", low=0), drawn)


def _in_flight(run: Run) -> Chart:
    rows, ends = run.rows, [row.end_s for row in run.rows]
    drawn = [series("in flight, client", "c1", "step", ends, [row.in_flight for row in rows])]
    if any(row.server_running is not None for row in rows):
        drawn = [
            *drawn,
            series("running, server", "c3", "area", ends, [row.server_running for row in rows]),
            series("waiting, server", "c2", "line", ends, [row.server_waiting for row in rows]),
        ]
    if any(row.users is not None for row in rows):
        drawn.append(series("users", "muted", "step", ends, [row.users for row in rows], dashed=True))
    note = "what the client waits for, and what the target's own metrics say of it"
    return _over_time(run, "in-flight", "Requests in flight", note, axis("count", "requests", low=0), drawn)


def _first_tokens(run: Run) -> Chart:
    at = [row.middle_s for row in run.rows]
    lines = [
        series("p50", "ink", "line", at, [row.ttft_p50_s for row in run.rows]),
        series("p95", "c2", "line", at, [row.ttft_p95_s for row in run.rows]),
    ]
    limit = bounds(run.result).get("ttft")
    return _single_requests(run, "ttft", "Time to first token", lambda record: record.ttft_s, lines, limit)


def _answers(run: Run) -> Chart:
    limit = bounds(run.result).get("e2e")
    return _single_requests(run, "e2e", "End to end", lambda record: record.e2e_s, [], limit)


def _single_requests(
    run: Run,
    identity: str,
    title: str,
    get: Callable[[RequestRecord], float | None],
    lines: list[Chart],
    limit: float | None,
) -> Chart:
    """A point per request where it was due; the lost ones along the top."""
    records = run.result.ledger.records
    points = [(r.scheduled_s, v, r) for r in records if r.outcome is Outcome.OK and (v := get(r)) is not None]
    shown = sorted(thinned(points, POINTS), key=lambda point: point[0])
    drawn = [*lines]
    if shown:
        dots = series("one request", "c1", "dots", *_columns(shown), tips=[_tip(r) for *_, r in shown])
        drawn.insert(0, dots)
    if lost := failed_records(records):
        top = max((value for _, value, _ in shown), default=1.0)
        crosses = [(r.scheduled_s, top, r) for r in lost][:: max(1, len(lost) // POINTS)]
        tips = [_tip(r) for *_, r in crosses]
        drawn.append(series("failed or unsent", "bad", "crosses", *_columns(crosses), tips=tips))
    marks = [] if limit is None else [mark_y(limit, f"limit {words.duration(limit)}")]
    note = "each request where it was due; failures along the top"
    return _over_time(run, identity, title, note, axis("duration", "", "log"), drawn, marks=marks)


def _tokens(run: Run) -> Chart:
    rows, at = run.rows, [row.middle_s for row in run.rows]
    drawn = [series("output tokens", "c1", "area", at, [row.output_tokens_per_s for row in rows])]
    if any(row.token_events_per_s < 0.98 * row.output_tokens_per_s for row in rows):
        drawn.append(series("token events", "c2", "line", at, [row.token_events_per_s for row in rows]))
    note = "credited to the second in which they arrived, of all requests"
    return _over_time(run, "tokens", "Output tokens per second", note, axis("rate", "tokens/s", low=0), drawn)


def _cache(run: Run) -> Chart:
    rows, ends = run.rows, [row.end_s for row in run.rows]
    drawn = [series("KV cache in use", "c3", "area", ends, [row.kv_cache_usage for row in rows])]
    if any(row.prefix_hit_share for row in rows):
        drawn.append(series("prefix cache hits", "c4", "line", ends, [row.prefix_hit_share for row in rows]))
    preempted = [(row.end_s, 1.0) for row in rows if row.preemptions_per_s]
    if preempted:
        drawn.append(series("preemptions", "bad", "crosses", [x for x, _ in preempted], [y for _, y in preempted]))
    note = "as the target's metrics say; hits are the share of prompt tokens found cached"
    return _over_time(run, "cache", "Server cache", note, axis("share", "", low=0, high=1), drawn)


def _send_lag(run: Run) -> Chart:
    ends = [row.end_s for row in run.rows]
    drawn = [series("largest send lag", "c5", "line", ends, [row.send_lag_max_s for row in run.rows])]
    limit = send_lag_limit_s(median_ttft_s(run.result.ledger))
    marks = [mark_y(limit, f"99 % must stay under {words.duration(limit)}")]
    note = "how late the load generator itself was"
    return _over_time(run, "lag", "Send lag", note, axis("duration", "", low=0), drawn, marks=marks)


def _columns(points: Sequence[tuple[float, float, RequestRecord]]) -> tuple[list[float], list[float]]:
    return [x for x, _, _ in points], [y for _, y, _ in points]


def _tip(record: RequestRecord) -> str:
    how = record.detail[:80] if record.outcome not in (Outcome.OK, Outcome.CANCELLED) else ""
    return f"{record.request_id} · {record.kind} · {record.outcome}{': ' + how if how else ''}"


def gap_charts(run: Run) -> list[Chart]:
    """The heat map of gaps: stalls and convoys that percentiles hide."""
    end = max((record.ended_s for record in run.result.ledger.records), default=0.0)
    heat = gap_heat_map(run.result.ledger.records, end) if end > 0 else None
    if heat is None:
        return []
    middles = [(a + b) / 2 for a, b in zip(heat.edges_s, heat.edges_s[1:], strict=False)]
    drawn = [
        series("p50", "ink", "line", middles, heat.p50_s),
        series("p99", "c2", "line", middles, heat.p99_s),
    ]
    top = heat.floor_s * heat.step**heat.rows
    x = axis("clock", "", low=0, high=heat.edges_s[-1])
    y = axis("duration", "", "log", low=heat.floor_s, high=top)
    note = "every gap of every stream, at the moment that ended it; darker: more of them"
    shown = view("", x, y, drawn, heat=_heat(heat))
    return [chart("gaps-heat", "Gaps between token events over time", note, [shown], height=340)]


def _heat(heat: HeatMap) -> dict[str, Any]:
    return {"edges": heat.edges_s, "floor": heat.floor_s, "step": heat.step, "cells": heat.cells, "unit": "gaps"}


def load_charts(run: Run, other: Run | None) -> list[Chart]:
    """Throughput and TTFT against concurrency: where more load stops to pay."""
    points = load_points(run.result, run.rows)
    if not points:
        return []
    drawn = []
    for name, colour, steady in (("steady window", "c1", True), ("warm-up and tail", "muted", False)):
        chosen = [point for point in points if point.steady is steady]
        if chosen:
            xs = [point.in_flight for point in chosen]
            drawn.append(series(name, colour, "dots", xs, [point.per_s for point in chosen]))
    if other is not None:
        old = [point for point in load_points(other.result, other.rows) if point.steady]
        xs = [point.in_flight for point in old]
        drawn.append(series(other.label, "c2", "dots", xs, [point.per_s for point in old]))
    what = "output tokens" if any(row.output_tokens_per_s for row in run.rows) else "answers"
    throughput = chart(
        "load-tokens",
        "Throughput against concurrency",
        f"one point per second of the run: mean requests in flight, {what} per second",
        [view("", axis("count", "in flight", low=0), axis("rate", "", low=0), drawn)],
    )
    seen = [(float(n), r.ttft_s, r) for n, r in in_flight_at_sending(run.result.ledger.records) if r.ttft_s is not None]
    shown = thinned(seen, POINTS)
    dots = series("one request", "c1", "dots", *_columns(shown), tips=[_tip(r) for *_, r in shown])
    first = chart(
        "load-ttft",
        "TTFT against concurrency",
        "each request: how many others were in flight when it was sent",
        [view("", axis("count", "in flight", low=0), axis("duration", "", "log"), [dots])],
    )
    return [throughput, first] if shown else [throughput]
