"""
One total out of many gateway processes, past and present.

Series are merged by name and label values, not by position, so that processes of two configurations (a reload) add up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from gateway.metrics.board import Board, Cells
from gateway.metrics.catalogue import IN_FLIGHT, LOST_REQUESTS, TENANT_IN_FLIGHT, Metric
from gateway.metrics.layout import Layout
from gateway.metrics.tenants import SLOT_SERIES

SeriesKey = tuple[Metric, tuple[str, ...]]
Values = dict[SeriesKey, list[float]]
"""Cells of each series: one number, or a histogram's buckets (not cumulative), its `+Inf` bucket and its sum."""


def merge(boards: Iterable[tuple[Layout, Cells]], retired: Mapping[SeriesKey, list[float]]) -> Values:
    """The values of the living boards on top of what retired ones have counted."""
    merged: Values = {key: list(values) for key, values in retired.items()}
    for layout, cells in boards:
        _fold(merged, _read(layout, cells))
    return merged


def retire(retired: Values, layout: Layout, cells: Cells) -> None:
    """Add what a dead process has counted to `retired`, and what it had in flight as lost. Gauges died with it."""
    for (metric, values), counted in _read(layout, cells):
        if metric.kind != "gauge":
            _fold(retired, [((metric, values), counted)])
        elif metric == IN_FLIGHT:
            _fold(retired, [((LOST_REQUESTS, values), counted)])
        elif metric == TENANT_IN_FLIGHT:
            retired.setdefault((metric, values), [0.0])  # the tenant was seen, and keeps its series


class Totals:
    """The boards of all gateway processes and the totals of the dead. Owned by the supervisor."""

    def __init__(self) -> None:
        self._boards: list[Board] = []
        self._retired: Values = {}
        self._sums: dict[SeriesKey, float] = {}

    def create(self, layout: Layout) -> Board:
        """A board for a process about to start; pass `board.fd` to it."""
        board = Board.create(layout)
        for model in layout.models:
            self._retired.setdefault((LOST_REQUESTS, (model,)), [0.0])
        self._boards.append(board)
        return board

    def retire(self, board: Board) -> None:
        """The board's process is dead (not merely draining): keep what it counted, free its memory. Idempotent."""
        if board not in self._boards:
            return
        retire(self._retired, board.layout, board.cells)
        self._boards.remove(board)
        board.close()

    def merged(self) -> Values:
        """
        Current totals; none is ever lower than it was, gauges aside.

        Counts are whole numbers and add up exactly, the sums of histograms do not: added in another order after a board
        was retired, they may come out lower in the last digit, which Prometheus would take for a counter that began
        anew.
        """
        values = merge(((board.layout, board.cells) for board in self._boards), self._retired)
        for key, cells in values.items():
            if key[0].kind == "histogram":
                cells[-1] = self._sums[key] = max(cells[-1], self._sums.get(key, 0.0))
        return values

    def of(self, metrics: Collection[Metric]) -> Values:
        """
        Current totals of some metrics, for who looks often: a hundred models have tens of thousands of series.
        """
        names = frozenset(metric.name for metric in metrics)
        values = {key: list(cells) for key, cells in self._retired.items() if key[0].name in names}
        for board in self._boards:
            _fold(values, _read(board.layout, board.cells, names))
        return values


def _read(
    layout: Layout, cells: Cells, names: Collection[str] | None = None
) -> Iterator[tuple[SeriesKey, list[float]]]:
    # One copy first: reading cell by cell through the view while the writer runs would spread a scrape over time.
    copy: list[float] = list(cells)
    for series in layout.series:
        if names is not None and series.metric.name not in names:
            continue
        yield (series.metric, series.values), copy[series.offset : series.offset + series.metric.width]
    if names is not None:
        return  # what is counted by tenant is for the whole exposition alone
    for tenant, slot in layout.tenants.named(cells, copy):
        for metric, more, cell in SLOT_SERIES:
            yield (metric, (tenant, *more)), [copy[slot + cell]]


def _fold(into: Values, items: Iterable[tuple[SeriesKey, list[float]]]) -> None:
    for key, values in items:
        present = into.get(key)
        if present is None:
            into[key] = values
        elif key[0].merge == "max":
            into[key] = [max(pair) for pair in zip(present, values, strict=True)]
        else:
            into[key] = [a + b for a, b in zip(present, values, strict=True)]
