"""
One total out of many gateway processes, past and present.

Boards of one layout are added up cell by cell; those of several configurations (a reload) are merged by name and label
values, not by position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import add

from gateway.metrics.board import Board, Cells
from gateway.metrics.catalogue import IN_FLIGHT, LOST_REQUESTS, TENANT_IN_FLIGHT, Metric
from gateway.metrics.layout import Layout, Run, SeriesKey
from gateway.metrics.tenants import SLOT_SERIES

Values = dict[SeriesKey, list[float]]
"""Cells of each series: one number, or a histogram's buckets (not cumulative), its `+Inf` bucket and its sum."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the dead boards of one layout have counted, tenants aside, cell by cell; gauges are zero: they died too."""

    layout: Layout
    cells: Sequence[float]


@dataclass(frozen=True, slots=True)
class Reading:
    """
    The boards of one moment and what was counted before it, to be added up in any thread (see `Totals.reading`).

    `counted` is by the layout's fingerprint. `apart` is what dead boards leave that has no cell of its own: lost
    requests, and what they counted by tenant.
    """

    boards: Sequence[Board]
    counted: Mapping[float, Counted]
    apart: Mapping[SeriesKey, list[float]]

    def values(self, metrics: Collection[Metric] | None = None) -> Values:
        """The totals of these metrics; None: of all, those by tenant included."""
        names = None if metrics is None else frozenset(metric.name for metric in metrics)
        values: Values = {}
        for layout, boards in self._by_layout():
            # One copy of each first: reading part by part while the writers run would spread a scrape over time.
            parts = [list(board.cells) if names is None else board.cells for board in boards]
            dead = self.counted.get(layout.fingerprint)
            columns = [*((dead.cells,) if dead is not None else ()), *parts]
            for run in layout.runs:
                wanted = names is None or run.metric.name in names
                if wanted and (boards or run.metric.kind != "gauge"):
                    _fold(values, _added(run, columns))
            if names is None:  # what is counted by tenant is for the whole exposition alone
                for board, copy in zip(boards, parts, strict=True):
                    _fold(values, _by_tenant(board, copy))
        _fold(values, ((key, [*cells]) for key, cells in self.apart.items() if names is None or key[0].name in names))
        return values

    def _by_layout(self) -> Iterable[tuple[Layout, list[Board]]]:
        """Each layout with its living boards, of which there may be none."""
        groups: dict[float, tuple[Layout, list[Board]]] = {
            fingerprint: (dead.layout, []) for fingerprint, dead in self.counted.items()
        }
        for board in self.boards:
            groups.setdefault(board.layout.fingerprint, (board.layout, []))[1].append(board)
        return groups.values()


class Totals:
    """The boards of all gateway processes and the totals of the dead. Owned by the supervisor."""

    def __init__(self) -> None:
        # Readings go on in other threads: what they hold is replaced here, never changed.
        self._boards: tuple[Board, ...] = ()
        self._counted: Mapping[float, Counted] = {}
        self._apart: Mapping[SeriesKey, list[float]] = {}
        self._sums: dict[SeriesKey, float] = {}
        self._newest: float | None = None
        self._readings = 0
        self._to_close: list[Board] = []

    def create(self, layout: Layout) -> Board:
        """A board for a process about to start; pass `board.fd` to it."""
        board = Board.create(layout)
        self._newest = layout.fingerprint
        self._apart = {**{(LOST_REQUESTS, (model,)): [0.0] for model in layout.models}, **self._apart}
        self._boards = (*self._boards, board)
        return board

    def retire(self, board: Board) -> None:
        """
        The board's process is dead (not merely draining): keep what it counted, free its memory. Idempotent.

        What it had in flight is lost from now on.
        """
        if board not in self._boards:
            return
        layout, cells = board.layout, list(board.cells)
        apart: Values = dict(self._apart)
        lost = next(run for run in layout.runs if run.metric is IN_FLIGHT)
        _fold(apart, (((LOST_REQUESTS, labels), counted) for (_, labels), counted in _added(lost, [cells])))
        for key, counted in _by_tenant(board, cells):
            # A tenant that was seen keeps its series.
            _fold(apart, [(key, [0.0] if key[0] is TENANT_IN_FLIGHT else counted)])
        for run in layout.runs:
            if run.metric.kind == "gauge":
                cells[run.begin : run.end] = [0.0] * (run.end - run.begin)
        before = self._counted.get(layout.fingerprint)
        total = cells[: layout.tenants.offset] if before is None else list(map(add, before.cells, cells))
        self._boards = tuple(each for each in self._boards if each is not board)
        dead = {**self._counted, layout.fingerprint: Counted(layout, total)}
        living = {each.layout.fingerprint for each in self._boards} | {self._newest}
        for fingerprint in dead.keys() - living:
            # A configuration that is over: by series, or every reload would make every scrape dearer.
            over = dead.pop(fingerprint)
            for run in over.layout.runs:
                if run.metric.kind != "gauge":
                    _fold(apart, _added(run, [over.cells]))
        self._counted = dead
        self._apart = apart
        self._to_close.append(board)
        self._close()

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """
        Everything as of now, to be added up inside the block, in whatever thread: with a hundred models that takes
        longer than the supervisor's other work may wait. A board that is retired meanwhile is closed after the block.
        """
        self._readings += 1
        try:
            yield Reading(self._boards, self._counted, self._apart)
        finally:
            self._readings -= 1
            self._close()

    def whole(self, reading: Reading) -> Values:
        """
        All totals of a reading; none is ever lower than it was in an earlier one, gauges aside. One at a time, in the
        order of the readings.

        Counts are whole numbers and add up exactly, the sums of histograms do not: added in another order after a board
        was retired, they may come out lower in the last digit, which Prometheus would take for a counter that began
        anew.
        """
        values = reading.values()
        for key, cells in values.items():
            if key[0].kind == "histogram":
                cells[-1] = self._sums[key] = max(cells[-1], self._sums.get(key, 0.0))
        return values

    def merged(self) -> Values:
        """All current totals, here and now."""
        with self.reading() as reading:
            return self.whole(reading)

    def of(self, metrics: Collection[Metric]) -> Values:
        """
        Current totals of some metrics, for who looks often: a hundred models have tens of thousands of series.
        """
        with self.reading() as reading:
            return reading.values(metrics)

    def _close(self) -> None:
        while self._to_close and not self._readings:
            self._to_close.pop().close()


def _added(run: Run, columns: Sequence[Sequence[float] | Cells]) -> Iterator[tuple[SeriesKey, list[float]]]:
    """All series of one metric, each the sum (or the largest) over the columns."""
    total = list(columns[0][run.begin : run.end])
    for column in columns[1:]:
        part = column[run.begin : run.end]
        total = list(map(max, total, part)) if run.metric.merge == "max" else list(map(add, total, part))
    width = run.metric.width
    if width == 1:
        return zip(run.keys, ([value] for value in total), strict=True)
    return zip(run.keys, (total[cell : cell + width] for cell in range(0, len(total), width)), strict=True)


def _by_tenant(board: Board, copy: Sequence[float]) -> Iterator[tuple[SeriesKey, list[float]]]:
    for tenant, slot in board.layout.tenants.named(board.cells, copy):
        for metric, more, cell in SLOT_SERIES:
            yield (metric, (tenant, *more)), [copy[slot + cell]]


def _fold(into: Values, items: Iterable[tuple[SeriesKey, list[float]]]) -> None:
    """Add to what is there; the lists that are there already are replaced, not changed."""
    for key, values in items:
        present = into.setdefault(key, values)
        if present is values:
            continue
        if key[0].merge == "max":
            into[key] = list(map(max, present, values))
        else:
            into[key] = list(map(add, present, values))
