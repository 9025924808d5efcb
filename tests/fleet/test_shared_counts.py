"""Leases count into the board that all gateway processes share, and routing goes by the sum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.fleet import BoardRow, FleetDispatcher, FleetView, InFlightBoard
from gateway.protocol.request import RequestView
from gateway.routing import Router
from gateway.types import FleetSnapshot, WorkerView

NOBODY: frozenset[str] = frozenset()


class Processes:
    """Two gateway processes' views of one fleet of two workers, and the supervisor's board."""

    def __init__(self, clock: Any, snapshot: Callable[..., FleetSnapshot], worker: Callable[..., WorkerView]) -> None:
        self.board = InFlightBoard.create()
        self.columns = [self.board.open_column(), self.board.open_column()]
        self.rows = [self.board.open_row(), self.board.open_row()]
        self.mine = [BoardRow.attach(os.dup(self.board.fd), row) for row in self.rows]
        self.views = [FleetView(clock, row=row) for row in self.mine]
        self.dispatchers = [FleetDispatcher(view, Router(), clock, lambda failure: None) for view in self.views]
        workers = [worker(f"llama-{index}", column=column) for index, column in enumerate(self.columns)]
        for view in self.views:
            view.apply(snapshot(1, *workers))

    def sums(self) -> list[int]:
        """In flight on each worker, as the supervisor sees it."""
        return [self.board.column_sum(column) for column in self.columns]


@pytest.fixture
def processes(clock: Any, snapshot: Any, worker: Any) -> Iterator[Processes]:
    both = Processes(clock, snapshot, worker)
    yield both
    for row in both.mine:
        row.close()
    both.board.close()


def test_the_least_loaded_worker_is_that_of_all_processes(processes: Processes, request_view: RequestView) -> None:
    """Whatever one process has in flight keeps the other away too; all of it is gone from the board afterwards."""
    first, second = processes.dispatchers
    with ExitStack() as stack:
        for _ in range(3):
            lease = first.lease("llama", request_view, frozenset({"llama-1"}))
            assert lease is not None
            stack.enter_context(lease)
        assert [3, 0] == processes.sums()
        for expected in (1, 2, 3):
            lease = second.lease("llama", request_view, NOBODY)
            assert lease is not None
            assert "llama-1" == stack.enter_context(lease).worker.name
            assert [3, expected] == processes.sums()
        assert [3, 3] == [processes.board.row_sum(row) for row in processes.rows]
        assert [3, 3] == [view.in_flight for view in processes.views]

    assert (0, [0, 0]) == (processes.board.total(), processes.sums())


def test_a_killed_process_makes_room_at_once(processes: Processes, request_view: RequestView) -> None:
    """Its requests keep others away only until the supervisor has zeroed its row."""
    first, second = processes.dispatchers
    for _ in range(3):
        lease = first.lease("llama", request_view, frozenset({"llama-1"}))
        assert lease is not None
        lease.__enter__()
    processes.board.zero_row(processes.rows[0])

    chosen = set()
    with ExitStack() as stack:
        for _ in range(2):
            lease = second.lease("llama", request_view, NOBODY)
            assert lease is not None
            chosen.add(stack.enter_context(lease).worker.name)

    assert {"llama-0", "llama-1"} == chosen
    assert 0 == processes.board.total()


def test_what_ends_late_on_an_earlier_launch_is_not_counted_on_the_later(
    processes: Processes,
    request_view: RequestView,
    snapshot: Callable[..., FleetSnapshot],
    worker: Callable[..., WorkerView],
) -> None:
    """The later launch begins at zero in every process, also while one of them has not heard of it yet."""
    aware, unaware = processes.dispatchers
    old = aware.lease("llama", request_view, frozenset({"llama-1"}))
    assert old is not None
    fresh = processes.board.open_column()
    with old:
        processes.views[0].apply(snapshot(2, worker("llama-0", launch="2", column=fresh)))
        late = unaware.lease("llama", request_view, frozenset({"llama-1"}))
        assert late is not None
        with late:
            assert (0, 2) == (processes.board.column_sum(fresh), processes.board.column_sum(processes.columns[0]))
            member = processes.views[0].member("llama-0")
            assert member is not None
            assert 0 == member.candidate(0.0, alone=False).in_flight

    assert 0 == processes.board.total()


def test_a_launch_that_gets_its_column_later_takes_its_count_along(
    processes: Processes,
    request_view: RequestView,
    snapshot: Callable[..., FleetSnapshot],
    worker: Callable[..., WorkerView],
) -> None:
    """What was in flight before is on the board from then on, and in no other column any more."""
    lease = processes.dispatchers[0].lease("llama", request_view, frozenset({"llama-1"}))
    assert lease is not None
    moved = processes.board.open_column()
    with lease:
        processes.views[0].apply(snapshot(2, worker("llama-0", column=moved)))
        assert (1, [0, 0]) == (processes.board.column_sum(moved), processes.sums())

    assert 0 == processes.board.total()
