"""The in-flight board: one writer per row, everybody sees the sum, and nobody who is late changes it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest

from gateway.errors import ControlUnavailable
from gateway.fleet import BoardFull, BoardRow, InFlightBoard
from gateway.fleet import board as board_module

Attach = Callable[[int], BoardRow]

WRITER = """
import sys
from gateway.fleet import BoardRow
row = BoardRow.attach(int(sys.argv[1]), int(sys.argv[2]))
print("attached", flush=True)
for line in sys.stdin:
    column, count = map(int, line.split())
    row.column(column).count(count)
    print(row.column(column).others(), flush=True)
"""


class Writer:
    """A real second process with a row of its own, that counts what it is told."""

    def __init__(self, board: InFlightBoard, row: int) -> None:
        self.row = row
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(board.fd), str(row)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            pass_fds=[board.fd],
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        assert "attached\n" == self._from.readline()

    def count(self, column: int, count: int) -> int:
        """Store a count; returns what the process sees of the others."""
        self._to.write(f"{column} {count}\n")
        return int(self._from.readline())

    def kill(self) -> None:
        """kill -9, and wait."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)
        self._to.close()
        self._from.close()


@pytest.fixture
def board() -> Iterator[InFlightBoard]:
    board = InFlightBoard.create()
    yield board
    board.close()


@pytest.fixture
def attach(board: InFlightBoard) -> Iterator[Attach]:
    """Attaches a row in this process, as a gateway process would."""
    rows: list[BoardRow] = []

    def make(row: int) -> BoardRow:
        rows.append(BoardRow.attach(os.dup(board.fd), row))
        return rows[-1]

    yield make
    for row in rows:
        row.close()


@pytest.fixture
def writers(board: InFlightBoard) -> Iterator[Callable[[int], Writer]]:
    """Starts real processes, and ends them."""
    started: list[Writer] = []

    def start(row: int) -> Writer:
        started.append(Writer(board, row))
        return started[-1]

    yield start
    for writer in started:
        writer.kill()


@pytest.mark.integration
def test_every_process_sees_the_sum_and_a_killed_one_takes_its_row_along(
    board: InFlightBoard, attach: Attach, writers: Callable[[int], Writer]
) -> None:
    """Real processes: what one stores the others read at once; after kill -9 and `zero_row` its share is gone."""
    column, other = board.open_column(), board.open_column()
    rows = [board.open_row() for _ in range(3)]
    mine = attach(rows[0])
    first, second = writers(rows[1]), writers(rows[2])

    mine.column(column).count(5)
    assert 5 == first.count(column, 7)
    assert 12 == second.count(column, 11)
    second.count(other, 2)

    assert (18, 16, 12) == (mine.column(column).others(), first.count(column, 7), second.count(column, 11))
    assert (23, 2) == (board.column_sum(column), board.column_sum(other))
    assert [5, 7, 13] == [board.row_sum(row) for row in rows]

    late = Writer(board, board.open_row())
    assert 23 == late.count(column, 100)
    board.zero_row(late.row)
    assert 23 == late.count(column, 50), "declared dead, it still sees the others"
    assert 23 == board.column_sum(column), "and nobody sees what it writes"
    late.kill()

    first.kill()
    assert 23 == board.column_sum(column), "a dead process's count stays until the supervisor has seen its end"
    board.zero_row(rows[1])

    assert (16, 11, 5) == (board.column_sum(column), mine.column(column).others(), second.count(column, 11))
    assert (18, 0) == (board.total(), board.row_sum(rows[1]))
    second.count(column, 0)
    second.count(other, 0)
    mine.column(column).count(0)
    assert 0 == board.total()


def test_a_process_declared_dead_that_still_writes_counts_nothing(board: InFlightBoard, attach: Attach) -> None:
    """Neither at once nor when its row has been given to a successor, whose own count stays what it was."""
    column, dead = board.open_column(), board.open_row()
    late, witness = attach(dead), attach(board.open_row())
    board.zero_row(dead)

    late.column(column).count(9)
    late.column(column).claim(1)
    late.looked(100)

    assert (0, 0, None) == (
        board.column_sum(column),
        witness.column(column).others(),
        witness.column(column).oldest_claim(50),
    )

    number = board.open_row()
    while number % board_module.ROWS != dead % board_module.ROWS:
        board.zero_row(number)
        number = board.open_row()
    late.column(column).count(9)
    assert (0, 0) == (board.column_sum(column), witness.column(column).others()), (
        "cells of the last owner are not the next's"
    )
    attach(number).column(column).count(4)
    board.zero_row(dead)
    assert (4, 4) == (board.column_sum(column), witness.column(column).others())


def test_a_count_for_an_earlier_launch_is_not_the_next_ones(board: InFlightBoard, attach: Attach) -> None:
    """The column is used again under another generation: what a process stores for the old launch counts for nobody."""
    old = board.open_column()
    late, prompt = attach(board.open_row()), attach(board.open_row())
    late.column(old).count(6)
    late.column(old).claim(10)
    late.looked(100)
    board.close_column(old)
    fresh = board.open_column()
    while fresh % board_module.COLUMNS != old % board_module.COLUMNS:
        board.close_column(fresh)
        fresh = board.open_column()

    assert (0, 0, None) == (
        board.column_sum(fresh),
        prompt.column(fresh).others(),
        prompt.column(fresh).oldest_claim(50),
    )
    late.column(old).count(5)
    prompt.column(fresh).count(3)
    assert (3, 3) == (board.column_sum(fresh), late.column(fresh).others())
    late.column(fresh).count(1)
    assert (4, 0) == (board.column_sum(fresh), board.column_sum(old))


def test_places_are_used_again_oldest_first_and_never_twice_at_a_time(board: InFlightBoard) -> None:
    """A column rests while a thousand others are used; when all places are taken that is an error that says so."""
    first = board.open_column()
    board.close_column(first)
    board.close_column(first)
    following = [board.open_column() for _ in range(board_module.COLUMNS)]

    assert first % board_module.COLUMNS == following[-1] % board_module.COLUMNS
    assert first not in following
    assert board_module.COLUMNS == len({column % board_module.COLUMNS for column in following})
    with pytest.raises(BoardFull, match="1024 workers"):
        board.open_column()


def test_claims_stand_while_their_process_looks(board: InFlightBoard, attach: Attach) -> None:
    """The oldest claim of a process that lives; who has not looked for a while, or claims nothing, is passed over."""
    column = board.open_column()
    mine, old, young = (attach(board.open_row()) for _ in range(3))
    for row, since_ms, looked_ms in ((old, 500, 1000), (young, 900, 1010), (mine, 100, 1010)):
        row.column(column).claim(since_ms)
        row.looked(looked_ms)

    assert 500 == mine.column(column).oldest_claim(1000)
    assert 900 == mine.column(column).oldest_claim(1001)
    assert 100 == young.column(column).oldest_claim(1000)
    young.column(column).claim(0)
    assert mine.column(column).oldest_claim(1001) is None


def test_random_counts_add_up(board: InFlightBoard, attach: Attach) -> None:
    """Rows that come and go, launches that are replaced, random counts: every sum is what the living have stored."""
    chance = random.Random(5)
    columns = [board.open_column() for _ in range(4)]
    rows: dict[int, tuple[BoardRow, dict[int, int]]] = {}
    for _ in range(2000):
        if len(rows) < 2 or (len(rows) < 6 and chance.random() < 0.05):
            number = board.open_row()
            rows[number] = (attach(number), {})
        elif chance.random() < 0.03:
            number = chance.choice(list(rows))
            board.zero_row(number)
            del rows[number]
        elif chance.random() < 0.02:
            place = chance.randrange(4)
            board.close_column(columns[place])
            columns[place] = board.open_column()
        else:
            row, stored = rows[chance.choice(list(rows))]
            column = chance.choice(columns)
            stored[column] = chance.randrange(1000)
            row.column(column).count(stored[column])
        column = chance.choice(columns)
        expected = sum(stored.get(column, 0) for _, stored in rows.values())
        assert expected == board.column_sum(column)
        reader, stored = rows[chance.choice(list(rows))]
        assert expected == reader.column(column).others() + stored.get(column, 0)


def test_a_descriptor_that_is_no_board_is_refused(board: InFlightBoard) -> None:
    """Another size, other contents, or a row that is not this process's: said, and the descriptor is closed."""
    row = board.open_row()
    board.zero_row(row)
    with tempfile.TemporaryFile() as short, tempfile.TemporaryFile() as strange:
        os.ftruncate(strange.fileno(), os.fstat(board.fd).st_size)
        for fd in (short.fileno(), strange.fileno(), board.fd):
            copy = os.dup(fd)
            with pytest.raises(ControlUnavailable, match="in-flight board"):
                BoardRow.attach(copy, row)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(copy)


def test_without_memfd_an_unlinked_file_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: the same board in a temporary file that has no name."""
    monkeypatch.setattr("gateway.metrics.board.sys.platform", "darwin")
    board = InFlightBoard.create()
    row = BoardRow.attach(os.dup(board.fd), board.open_row())
    column = board.open_column()
    row.column(column).count(3)

    assert 3 == board.column_sum(column)
    assert 0 == os.fstat(board.fd).st_nlink
    row.close()
    row.close()
    board.close()
    board.close()


def test_the_memory_is_taken_for_rows_in_use_only(board: InFlightBoard) -> None:
    """Eight MiB are set aside and some pages used."""
    for _ in range(4):
        board.open_row()

    assert os.fstat(board.fd).st_blocks * 512 < 256 * 1024


RACER = """
import sys, time
from gateway.fleet import BoardRow
fd, row, column, limit = map(int, sys.argv[1:])
cell = BoardRow.attach(fd, row).column(column)
print("ready", flush=True)
sys.stdin.readline()
most = grants = refusals = mine = 0
until = time.monotonic() + 0.7
# Who has had no turn yet on a busy machine goes on until it has.
while time.monotonic() < until or (not (grants and refusals) and time.monotonic() < until + 30):
    for _ in range(20):
        if mine + cell.others() < limit:
            mine += 1
            cell.count(mine)
            grants += 1
            most = max(most, mine + cell.others())
        else:
            refusals += 1
    while mine > 2:
        mine -= 1
        cell.count(mine)
cell.count(0)
print(most, grants, refusals, flush=True)
"""


@pytest.mark.integration
def test_racing_processes_overshoot_a_limit_by_at_most_the_others(board: InFlightBoard) -> None:
    """Four real processes grant and give back as fast as they can: the sum never exceeds limit + 3; all get some."""
    column, limit, racers = board.open_column(), 16, []
    for _ in range(4):
        arguments = map(str, (board.fd, board.open_row(), column, limit))
        racers.append(
            subprocess.Popen(
                [sys.executable, "-c", RACER, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[board.fd],
            )
        )
    for racer in racers:
        assert racer.stdout is not None
        assert "ready\n" == racer.stdout.readline()
    results = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    for racer in racers:
        said, _ = racer.communicate(timeout=60)
        results.append([int(word) for word in said.split()])

    assert limit <= max(most for most, _, _ in results) <= limit + 3
    assert all(grants and refusals for _, grants, refusals in results)
    assert 0 == board.total()
