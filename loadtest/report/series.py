"""
What the charts draw, pure: the run cut into rows of about a second, gaps over time, points of single requests.

Rows follow the samples that were taken during the run; counts become rates, tokens are credited to the row in which
they arrived.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from loadtest.ledger import RequestRecord
from loadtest.outcomes import Outcome
from loadtest.report.figures import arrivals
from loadtest.result import RunResult, ServerSample, TimelineSample

GAP_CELLS_PER_DECADE = 12
SHORTEST_ROW_S = 0.5
SMALLEST_GAP_S = 1e-4
"""Shorter gaps share the lowest cells, as does the shortest five hundredth: events that came in one read."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One stretch of the run. Rates are per second of it; gauges are as at its end; None: not known."""

    start_s: float
    end_s: float
    scheduled_per_s: float
    sent_per_s: float
    ok_per_s: float
    failed_per_s: float
    unsent_per_s: float
    cancelled_per_s: float
    in_flight: int
    users: int | None
    token_events_per_s: float
    output_tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    send_lag_max_s: float
    server_running: float | None
    server_waiting: float | None
    kv_cache_usage: float | None
    preemptions_per_s: float | None
    prefix_hit_share: float | None

    @property
    def middle_s(self) -> float:
        """Where it is drawn."""
        return (self.start_s + self.end_s) / 2


def timeline_rows(result: RunResult, most: int | None = None) -> list[TimelineRow]:
    """The rows of a run, one per sample, or `most` of them: then neighbours are joined."""
    samples = [sample for sample in result.timeline if sample.at_s > 0]
    if not samples:
        return []
    groups = _groups(samples, 1 if most is None else math.ceil(len(samples) / most))
    edges = [0.0, *(group[-1].at_s for group in groups)]
    records = result.ledger.records
    tokens, firsts = _arrived(records, edges), _first_tokens(records, edges)
    rows = []
    before = TimelineSample(0.0, 0, 0, 0, 0, 0, 0, 0, 0, None, 0.0)
    for k, group in enumerate(groups):
        last, seconds = group[-1], max(group[-1].at_s - before.at_s, 1e-9)
        old, new = _latest(result.server, before.at_s), _latest(result.server, last.at_s)
        events = (last.token_events - before.token_events) / seconds
        ttfts = sorted(firsts[k])
        rows.append(
            TimelineRow(
                start_s=before.at_s,
                end_s=last.at_s,
                scheduled_per_s=(last.scheduled - before.scheduled) / seconds,
                sent_per_s=(last.sent - before.sent) / seconds,
                ok_per_s=(last.ok - before.ok) / seconds,
                failed_per_s=(last.failed - before.failed) / seconds,
                unsent_per_s=(last.unsent - before.unsent) / seconds,
                cancelled_per_s=(last.cancelled - before.cancelled) / seconds,
                in_flight=last.in_flight,
                users=last.users,
                token_events_per_s=events,
                output_tokens_per_s=tokens[k] / seconds if records else events,
                ttft_p50_s=quantile(ttfts, 0.5) if records else last.ttft_p50_s,
                ttft_p95_s=quantile(ttfts, 0.95),
                send_lag_max_s=max(sample.send_lag_max_s for sample in group),
                server_running=new.running if new else None,
                server_waiting=new.waiting if new else None,
                kv_cache_usage=new.kv_cache_usage if new else None,
                preemptions_per_s=_per_second(old, new, lambda one: one.preemptions),
                prefix_hit_share=_hit_share(old, new),
            )
        )
        before = last
    return rows


def _groups(samples: Sequence[TimelineSample], step: int) -> list[list[TimelineSample]]:
    """
    Samples that make one row each. A stretch shorter than `SHORTEST_ROW_S` joins the row before: the last sample comes
    when the run ends, and three answers within a tenth of a second are not thirty a second.
    """
    groups: list[list[TimelineSample]] = []
    for sample in samples:
        short = bool(groups) and sample.at_s - groups[-1][-1].at_s < SHORTEST_ROW_S
        if groups and (short or len(groups[-1]) < step):
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return groups


def quantile(ordered: Sequence[float], p: float) -> float | None:
    """The value at or under which a share `p` lies; the values must be sorted. None without values."""
    return ordered[max(1, math.ceil(p * len(ordered))) - 1] if ordered else None


def _index(edges: Sequence[float], at: float) -> int | None:
    """The row that a moment falls into; the last edge belongs to the last row."""
    if not edges[0] <= at <= edges[-1]:
        return None
    return min(bisect_right(edges, at), len(edges) - 1) - 1


def _arrived(records: Iterable[RequestRecord], edges: Sequence[float]) -> list[float]:
    tokens = [0.0] * (len(edges) - 1)
    for record in records:
        for at, count in arrivals(record):
            if (k := _index(edges, at)) is not None:
                tokens[k] += count
    return tokens


def _first_tokens(records: Iterable[RequestRecord], edges: Sequence[float]) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in edges[1:]]
    for record in records:
        if record.first_token_s is not None and record.ttft_s is not None:
            k = _index(edges, record.first_token_s)
            if k is not None:
                found[k].append(record.ttft_s)
    return found


def _latest(samples: Sequence[ServerSample], at: float) -> ServerSample | None:
    k = bisect_right(samples, at, key=lambda sample: sample.at_s)
    return samples[k - 1] if k else None


def _per_second(
    old: ServerSample | None, new: ServerSample | None, counter: Callable[[ServerSample], float | None]
) -> float | None:
    if old is None or new is None or new.at_s <= old.at_s:
        return None
    before, after = counter(old), counter(new)
    if before is None or after is None:
        return None
    return max(0.0, after - before) / (new.at_s - old.at_s)


def _hit_share(old: ServerSample | None, new: ServerSample | None) -> float | None:
    hits = _per_second(old, new, lambda one: one.prefix_hits)
    queries = _per_second(old, new, lambda one: one.prefix_queries)
    return min(1.0, hits / queries) if hits is not None and queries else None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Counts of gaps by time and length. Column k lies between two of `edges_s`; row j starts at `floor_s` · step^j."""

    edges_s: list[float]
    floor_s: float
    step: float
    rows: int
    cells: list[tuple[int, int, int]] = field(default_factory=list)
    """(column, row, count), those with a count only."""
    p50_s: list[float | None] = field(default_factory=list)
    p99_s: list[float | None] = field(default_factory=list)


def gap_heat_map(records: Iterable[RequestRecord], end_s: float, columns: int = 100) -> HeatMap | None:
    """Gaps of all requests, by the moment that ended them; None without gaps."""
    width = end_s / columns if end_s > columns * 0.25 else 0.25
    count = max(1, math.ceil(end_s / width - 1e-9))
    found: list[list[float]] = [[] for _ in range(count)]
    for record in records:
        times = iter(record.token_times_s())
        next(times, None)
        for gap, at in zip(record.gaps_s, times, strict=False):
            found[min(int(at / width), count - 1)].append(max(gap, SMALLEST_GAP_S))
    everything = sorted(gap for column in found for gap in column)
    shortest = quantile(everything, 0.002)
    if shortest is None:
        return None
    low = math.floor(math.log10(shortest) * GAP_CELLS_PER_DECADE)
    high = math.floor(math.log10(everything[-1]) * GAP_CELLS_PER_DECADE)
    heat = HeatMap(
        [round(k * width, 3) for k in range(count + 1)],
        10 ** (low / GAP_CELLS_PER_DECADE),
        10 ** (1 / GAP_CELLS_PER_DECADE),
        high - low + 1,
    )
    for k, column in enumerate(found):
        cells: dict[int, int] = {}
        for gap in column:
            row = min(max(math.floor(math.log10(gap) * GAP_CELLS_PER_DECADE) - low, 0), high - low)
            cells[row] = cells.get(row, 0) + 1
        heat.cells.extend((k, row, n) for row, n in sorted(cells.items()))
        column.sort()
        heat.p50_s.append(quantile(column, 0.5))
        heat.p99_s.append(quantile(column, 0.99))
    return heat


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One row of the run, as throughput against concurrency."""

    in_flight: float
    """Mean over the row."""
    per_s: float
    """Output tokens, or answers where there are none."""
    steady: bool


def load_points(result: RunResult, rows: Sequence[TimelineRow]) -> list[LoadPoint]:
    """Throughput against requests in flight, one point per row in which anything was in flight."""
    if not rows:
        return []
    edges = [rows[0].start_s, *(row.end_s for row in rows)]
    busy = [0.0] * len(rows)
    for record in result.ledger.records:
        if record.sent_s is None:
            continue
        k = _index(edges, max(record.sent_s, edges[0]))
        while k is not None and k < len(rows) and rows[k].start_s < record.ended_s:
            busy[k] += min(record.ended_s, rows[k].end_s) - max(record.sent_s, rows[k].start_s)
            k += 1
    start, end = result.window
    tokens = any(row.output_tokens_per_s for row in rows)
    return [
        LoadPoint(
            seconds / max(row.end_s - row.start_s, 1e-9),
            row.output_tokens_per_s if tokens else row.ok_per_s,
            start <= row.start_s and row.end_s <= end,
        )
        for row, seconds in zip(rows, busy, strict=True)
        if seconds > 0
    ]


def in_flight_at_sending(records: Iterable[RequestRecord]) -> list[tuple[int, RequestRecord]]:
    """Every request that was sent, with how many others were in flight at that moment."""
    sent = sorted((r for r in records if r.sent_s is not None), key=lambda record: record.sent_s or 0.0)
    ends = sorted(record.ended_s for record in sent)
    return [(k - bisect_right(ends, record.sent_s or 0.0), record) for k, record in enumerate(sent)]


def thinned(
    points: Sequence[tuple[float, float, RequestRecord]], most: int
) -> list[tuple[float, float, RequestRecord]]:
    """At most `most` of these (x, y, request), every k-th by height, but always the highest: outliers are the news."""
    if len(points) <= most:
        return list(points)
    ordered = sorted(points, key=lambda point: -point[1])
    head = most // 4
    stride = math.ceil((len(ordered) - head) / (most - head))
    return ordered[:head] + ordered[head::stride]


def failed_records(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Requests that failed or were not sent."""
    return [record for record in records if record.outcome not in (Outcome.OK, Outcome.CANCELLED)]
