"""Totals over processes that come and go."""

from __future__ import annotations

import itertools

import pytest

from gateway.metrics import Layout, SlotCounters, Totals
from gateway.metrics.catalogue import IN_FLIGHT, INTER_TOKEN_LATENCY, LOST_REQUESTS
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


def test_what_a_dead_process_had_in_hand_is_lost_and_not_in_flight() -> None:
    """Begun in two processes, ended in one: after the other has died, ended and lost are all that were begun."""
    totals, layout = Totals(), Layout(("m",))
    dead, living = totals.create(layout), totals.create(layout)
    for board in (dead, dead, living):
        SlotCounters(layout, board.cells).started("m", "")
    before = totals.merged()
    totals.retire(dead)
    after = totals.merged()

    assert ([3.0], [0.0]) == (before[IN_FLIGHT, ("m",)], before[LOST_REQUESTS, ("m",)])
    assert ([1.0], [2.0]) == (after[IN_FLIGHT, ("m",)], after[LOST_REQUESTS, ("m",)])


def test_totals_of_some_metrics_are_those_of_all_and_no_others() -> None:
    """Whoever looks often does not pay for every series; the dead are counted, and nothing is changed."""
    totals, layout = Totals(), Layout(("m", "n"))
    dead, living = totals.create(layout), totals.create(layout)
    for board in (dead, dead, living):
        SlotCounters(layout, board.cells).started("m", "")
    totals.retire(dead)
    wanted = (IN_FLIGHT, LOST_REQUESTS)
    expected = {key: cells for key, cells in totals.merged().items() if key[0] in wanted}
    for cells in totals.of(wanted).values():
        cells[0] += 100.0

    assert expected == totals.of(wanted)
    assert {"m", "n", "other"} == {values[0] for _, values in expected}
