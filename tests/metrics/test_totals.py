"""Totals over processes that come and go."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from gateway.metrics import Board, Layout, SlotCounters, Totals, Values
from gateway.metrics.catalogue import IN_FLIGHT, INTER_TOKEN_LATENCY, LOST_REQUESTS, TENANT_IN_FLIGHT
from gateway.metrics.counters import CellHistogram
from gateway.metrics.pending import PendingCells


def observe(board: Board, offset: int, seconds: float) -> None:
    """Count one gap in a board's histogram at `offset`."""
    pending = PendingCells(board.cells)
    CellHistogram(pending, offset, INTER_TOKEN_LATENCY).observe(seconds)
    pending.flush()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_sum_never_falls_when_processes_die(order: tuple[int, ...]) -> None:
    """0.1, 0.2 and 0.3 of three processes add up differently in another order; whichever die first, no total falls."""
    totals, layout = Totals(), Layout(("m",))
    boards = [totals.create(layout) for _ in range(3)]
    for board, seconds in zip(boards, (0.1, 0.2, 0.3), strict=True):
        offset = layout.offset(INTER_TOKEN_LATENCY, "m")
        observe(board, offset, seconds)
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


def test_configurations_that_are_over_cost_a_reading_nothing() -> None:
    """Twenty reloads, each with another model: what all of them counted is there, added up by series once for all."""
    totals = Totals()
    for number in range(20):
        layout = Layout(("m", f"m{number}"))
        board = totals.create(layout)
        offset = layout.offset(INTER_TOKEN_LATENCY, "m")
        observe(board, offset, 1.0)
        SlotCounters(layout, board.cells).started("m", "")
        totals.retire(board)
    after = totals.merged()

    with totals.reading() as reading:
        assert 1 == len(reading.counted)
    assert (20.0, 20) == (after[INTER_TOKEN_LATENCY, ("m",)][-1], sum(after[INTER_TOKEN_LATENCY, ("m",)][:-1]))
    assert [20.0] == after[LOST_REQUESTS, ("m",)]
    assert not [key for key in after if key[0] is IN_FLIGHT and key[1] == ("m0",)]


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


def series_of(board: Board) -> Values:
    """Each series of a board by itself, tenants aside."""
    return {
        (each.metric, each.values): list(board.cells[each.offset : each.offset + each.metric.width])
        for each in board.layout.series
    }


@pytest.mark.parametrize("seed", range(5))
def test_adding_up_by_the_cell_is_adding_up_by_the_series(seed: int) -> None:
    """Boards of three configurations, dead and living, whole numbers in every cell, against a sum that knows names."""
    dice, totals = Random(seed), Totals()
    layouts = [
        Layout(("a", "b"), [("a", "a-0")]),
        Layout(("b", "c"), [("b", "b-0"), ("c", "c-0")]),
        Layout(("a", "b"), [("a", "a-0")]),
    ]
    expected: Values = {}
    for layout in layouts * 2:
        board, dies = totals.create(layout), dice.random() < 0.5
        for cell in range(1, layout.tenants.offset):
            board.cells[cell] = float(dice.randrange(10))
        for model in layout.models:
            expected.setdefault((LOST_REQUESTS, (model,)), [0.0])
        for (metric, labels), cells in series_of(board).items():
            if dies and metric.kind == "gauge":
                if metric is IN_FLIGHT:
                    expected[LOST_REQUESTS, labels][0] += cells[0]
                continue
            before = expected.get((metric, labels), [0.0] * metric.width)
            together = max if metric.merge == "max" else sum
            expected[metric, labels] = [float(together(pair)) for pair in zip(before, cells, strict=True)]
        if dies:
            totals.retire(board)

    assert expected == totals.merged()
    assert expected == totals.of(tuple({metric for metric, _ in expected}))


def test_a_board_that_is_retired_during_a_reading_counts_once_in_it_and_after_it() -> None:
    """Added up in another thread when the process is dead already; its memory is kept until then, and no longer."""
    totals, layout = Totals(), Layout(("m",))
    dead, living = totals.create(layout), totals.create(layout)
    for board in (dead, dead, living):
        SlotCounters(layout, board.cells).started("m", "acme")
    with ThreadPoolExecutor(1) as thread:
        with totals.reading() as reading:
            totals.retire(dead)
            kept = dead.fd >= 0
            with totals.reading() as later:
                next_one = thread.submit(later.values).result(10)
            still_kept = dead.fd >= 0
            during = thread.submit(totals.whole, reading).result(10)
        freed = dead.fd < 0
    after = totals.merged()

    assert (True, True, True) == (kept, still_kept, freed)
    assert ([3.0], [0.0]) == (during[IN_FLIGHT, ("m",)], during[LOST_REQUESTS, ("m",)])
    assert [3.0] == during[TENANT_IN_FLIGHT, ("acme",)]
    for values in (next_one, after):
        assert ([1.0], [2.0]) == (values[IN_FLIGHT, ("m",)], values[LOST_REQUESTS, ("m",)])
        assert [1.0] == values[TENANT_IN_FLIGHT, ("acme",)]


def test_what_is_done_to_totals_that_were_given_reaches_no_others() -> None:
    """The renderer and the console change theirs."""
    totals, layout = Totals(), Layout(("m",))
    for _ in range(2):
        board = totals.create(layout)
        SlotCounters(layout, board.cells).started("m", "acme")
        totals.retire(board)
    given = totals.merged()
    before = {key: list(cells) for key, cells in given.items()}
    for cells in given.values():
        cells[:] = [1000.0] * len(cells)

    assert before == totals.merged()
