"""Requests of API keys, counted by all gateway processes together."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest

from gateway.errors import Rejected
from gateway.fleet import BoardRow, InFlightBoard
from gateway.fleet import row as row_module
from gateway.fleet.board import KEY_CELLS
from gateway.keys import InFlightSlots


@pytest.fixture
def board() -> Iterator[InFlightBoard]:
    board = InFlightBoard.create()
    yield board
    board.close()


@pytest.fixture
def process(board: InFlightBoard) -> Iterator[Callable[[], tuple[int, BoardRow]]]:
    """Makes rows: the number and the process's side."""
    rows: list[BoardRow] = []

    def make() -> tuple[int, BoardRow]:
        number = board.open_row()
        rows.append(BoardRow.attach(os.dup(board.fd), number))
        return number, rows[-1]

    yield make
    for row in rows:
        row.close()


def key_id(number: int) -> str:
    return f"key-{number:08x}"


def test_a_limit_holds_for_all_processes_together(
    board: InFlightBoard, process: Callable[[], tuple[int, BoardRow]]
) -> None:
    """Three requests over two processes use up a limit of three; a dead process's are free again."""
    (_, first), (doomed, second) = process(), process()
    here, there = (InFlightSlots(3, row.key(key_id(7))) for row in (first, second))
    here.__enter__()
    there.__enter__()
    there.__enter__()
    for slots in (here, there):
        with pytest.raises(Rejected, match="already has 3 requests in progress"):
            slots.__enter__()
    here.__exit__(None, None, None)
    with there, pytest.raises(Rejected):
        here.__enter__()

    board.zero_row(doomed)
    with here, here, here, pytest.raises(Rejected):
        here.__enter__()
    assert 0 == here.in_flight


def test_a_limit_that_is_set_later_counts_what_runs_already(process: Callable[[], tuple[int, BoardRow]]) -> None:
    """As long as there is none nobody is told; from then on everybody knows, until it is taken away."""
    (_, first), (_, second) = process(), process()
    here, there = (InFlightSlots(None, row.key(key_id(7))) for row in (first, second))
    with here, here:
        with there:
            pass
        there.limit = 2
        with there:
            pass
        here.limit = 2
        with pytest.raises(Rejected):
            there.__enter__()
        here.limit = None
        with there:
            pass


def test_keys_do_not_mix(process: Callable[[], tuple[int, BoardRow]]) -> None:
    """Hundreds of keys, many of which fall on the same place of the table, met in different orders by each process."""
    chance = random.Random(3)
    rows = [process()[1] for _ in range(3)]
    ids = [key_id(base + KEY_CELLS * number) for base in (0, 1, KEY_CELLS - 1) for number in range(60)]
    stored: list[dict[str, int]] = [{}, {}, {}]
    for _ in range(4000):
        which, key = chance.randrange(3), chance.choice(ids)
        stored[which][key] = chance.randrange(50)
        rows[which].key(key).count(stored[which][key])
        reader, other = chance.randrange(3), chance.choice(ids)
        expected = sum(counts.get(other, 0) for index, counts in enumerate(stored) if index != reader)
        assert expected == rows[reader].key(other).others()


def test_keys_beyond_the_table_are_counted_alone(process: Callable[[], tuple[int, BoardRow]]) -> None:
    """The others are not disturbed, and nothing is searched for ever."""
    (_, full), (_, witness) = process(), process()
    for number in range(row_module.MOST_KEYS + 5):
        full.key(key_id(number * 2_654_435_761 % 2**32)).count(1)

    counts = [
        witness.key(key_id(number * 2_654_435_761 % 2**32)).others() for number in range(row_module.MOST_KEYS + 5)
    ]
    assert [1] * row_module.MOST_KEYS + [0] * 5 == counts
    slots = InFlightSlots(1, full.key(key_id(12345)))
    with slots, pytest.raises(Rejected):
        slots.__enter__()
