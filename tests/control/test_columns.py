"""Columns of the in-flight board: one for each launch, so that nothing late counts against a later one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from pydantic import ValidationError

from gateway.config.settings import MAX_WORKERS, Settings
from gateway.control.columns import Columns
from gateway.fleet import BoardRow, InFlightBoard
from gateway.types import WorkerAddress, WorkerState, WorkerView

VIEW = WorkerView("m-0", "m", WorkerState.READY, "first", WorkerAddress(), 0.0)


@pytest.fixture
def board() -> Iterator[InFlightBoard]:
    with closing(InFlightBoard.create()) as made:
        yield made


def test_a_launch_keeps_its_column_and_the_next_one_has_another(board: InFlightBoard) -> None:
    columns = Columns(board)
    (first,) = columns.placed([VIEW])
    (still,) = columns.placed([replace(VIEW, state=WorkerState.DRAINING)])
    (second,) = columns.placed([replace(VIEW, launch_id="second")])

    assert first.column == still.column > 0
    assert first.column != second.column
    assert WorkerState.DRAINING is still.state


def test_a_worker_without_a_process_has_no_column(board: InFlightBoard) -> None:
    (view,) = Columns(board).placed([replace(VIEW, launch_id="")])

    assert -1 == view.column


def test_what_is_late_on_a_dead_launch_changes_nothing_for_the_living_one(board: InFlightBoard) -> None:
    """A gateway process that has not heard of the new launch counts on, where nobody adds it up any more."""
    columns = Columns(board)
    row = BoardRow.attach(os.dup(board.fd), board.open_row())
    (first,) = columns.placed([VIEW])
    mine = row.column(first.column)
    mine.count(3)
    (second,) = columns.placed([replace(VIEW, launch_id="second")])
    mine.count(4)
    late = columns.in_flight(second)
    row.column(second.column).count(1)

    assert (0, 1) == (late, columns.in_flight(second))
    row.close()


def test_a_dead_process_has_nothing_in_flight(board: InFlightBoard) -> None:
    columns = Columns(board)
    (view,) = columns.placed([VIEW])
    numbers = [board.open_row(), board.open_row()]
    rows = [BoardRow.attach(os.dup(board.fd), number) for number in numbers]
    mine = [row.column(view.column) for row in rows]
    for column in mine:
        column.count(2)
    before = columns.in_flight(view)
    board.zero_row(numbers[0])
    mine[0].count(9)  # declared dead, and writes all the same

    assert (4, 2) == (before, columns.in_flight(view))
    for row in rows:
        row.close()


def test_a_reload_that_replaces_every_worker_finds_room_and_a_larger_fleet_is_refused(board: InFlightBoard) -> None:
    """A full board would end the supervisor in the middle of a reload: the configuration is refused before."""
    workers = [{"url": f"http://h:{1000 + number}"} for number in range(MAX_WORKERS)]
    Settings.model_validate({"models": {"m": {"workers": workers}}})
    with pytest.raises(ValidationError, match=f"{MAX_WORKERS + 1} workers in all"):
        Settings.model_validate({"models": {"m": {"workers": workers}, "n": {"model": "some/model"}}})
    columns = Columns(board)
    old, new = ([replace(VIEW, name=f"{kind}-{number}") for number in range(MAX_WORKERS)] for kind in ("old", "new"))
    columns.placed(old)

    assert 2 * MAX_WORKERS == len({view.column for view in columns.placed([*old, *new])})
