"""Totals over processes that come and go."""

from __future__ import annotations

import itertools

import pytest

from gateway.metrics import Layout, Totals
from gateway.metrics.catalogue import INTER_TOKEN_LATENCY
from gateway.metrics.counters import CellHistogram


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_sum_never_falls_when_processes_die(order: tuple[int, ...]) -> None:
    """0.1, 0.2 and 0.3 of three processes add up differently in another order; whichever die first, no total falls."""
    totals, layout = Totals(), Layout(("m",))
    boards = [totals.create(layout) for _ in range(3)]
    for board, seconds in zip(boards, (0.1, 0.2, 0.3), strict=True):
        offset = layout.offset(INTER_TOKEN_LATENCY, "m")
        CellHistogram(board.cells, offset, INTER_TOKEN_LATENCY).observe(seconds)
    seen = [totals.merged()[INTER_TOKEN_LATENCY, ("m",)]]
    for index in order:
        totals.retire(boards[index])
        seen.append(totals.merged()[INTER_TOKEN_LATENCY, ("m",)])

    assert all(after[-1] >= before[-1] for before, after in itertools.pairwise(seen))
    assert 1 == len({tuple(cells[:-1]) for cells in seen})
    assert pytest.approx(0.6) == seen[-1][-1]
