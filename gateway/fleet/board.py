"""
The memory in which all gateway processes of a fleet count what they have in flight, so that each of them sees the sum.

One memfd, passed by descriptor, of int64 cells. Every gateway process has a row and is its only writer; every launch of
a worker has a column. The supervisor hands both out, and zeroes a row when its process is dead. A cell is one aligned
8-byte store, which the supported machines never tear; there are no locks, and a process that dies anywhere leaves
nothing behind but its row.

    header   what this is; an epoch, which changes with the set of rows in use
    rows     for each row the generation of its present owner, 0 for a row nobody owns
    a row    when its owner last looked; then three planes:
               in flight   by column: generation of the row | generation of the column | count
               claims      by column: generation of the column | since when the owner's first in line waits for it
               keys        an open hash table: generation of the row | number of the API key | count

**Late writers.** A row belongs to a generation of owners, a column to a generation of launches, and a cell says which
ones it was written for. A cell of another generation counts as zero. So a process that was declared dead and still
writes, or one that has not heard yet that a worker was launched anew, changes nothing that anybody adds up; and both
kinds of place are used again oldest first, so that it does not overwrite a successor's cell either.

**Order.** Nothing relies on the order in which two cells become visible but one thing: the epoch is stored after the
generation it announces. x86 keeps that order. ARM need not, and a process that sees them the other way round goes by
the old set of rows until its next `BoardRow.look`, which is made every second; a new process takes about that long
to start before it counts anything, and a dead one's row is zeroed.

**What the sum is worth.** A reader adds up other rows without stopping their owners: between its reading and its own
store, each other process may store once. A limit checked against the sum is overshot by at most the number of gateway
processes minus one.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections import deque
from typing import TypeAlias

from gateway.errors import ControlUnavailable, GatewayError
from gateway.metrics.board import anonymous_file

Cells: TypeAlias = "memoryview[int]"
"""A view of int64 cells, as `memoryview.cast("q")` gives it."""

ROWS = 256
"""Gateway processes at a time, those that are being replaced included."""
COLUMNS = 1024
"""Launches at a time; far more than a host runs workers, so that a column rests long before it is used again."""
KEY_CELLS = 4096
"""For API keys with an in-flight limit, in each row."""

COUNT_BITS = 20
COLUMN_BITS = 22
_ROW_BITS = 21
COUNTS = 1 << COUNT_BITS
"""A cell counts to one less than this."""
ROW_SHIFT = COUNT_BITS + COLUMN_BITS

_SHAPE = 0
"""Cell with `_THIS_SHAPE`, by which a board is recognised."""
_THIS_SHAPE = 0x6677 << 48 | ROWS << 32 | COLUMNS << 16 | KEY_CELLS
EPOCH = 1
FIRST_GENERATION = 8
LOOKED_AT = 0
IN_FLIGHT = 8
CLAIMS = IN_FLIGHT + COLUMNS
KEYS = CLAIMS + COLUMNS
ROW_CELLS = KEYS + KEY_CELLS
"""Offsets in a row. Rows are whole cache lines, so that two writers never share one."""
FIRST_ROW = FIRST_GENERATION + ROWS
_SIZE_BYTES = 8 * (FIRST_ROW + ROWS * ROW_CELLS)


class BoardFull(GatewayError):
    """More gateway processes, or launches of workers, at a time than the board has places for."""


def map_cells(fd: int) -> tuple[mmap.mmap, Cells]:
    """
    The mapping of a board's descriptor and its cells.

    Raises:
        ControlUnavailable: It is no board, or another release's.
    """
    found = os.fstat(fd).st_size
    if found == _SIZE_BYTES:
        memory = mmap.mmap(fd, _SIZE_BYTES)
        cells: Cells = memoryview(memory).cast("q")
        if cells[_SHAPE] == _THIS_SHAPE:
            return memory, cells
        cells.release()
        memory.close()
    raise ControlUnavailable(
        f"expected the supervisor's in-flight board of {_SIZE_BYTES} bytes, found another layout ({found} bytes)",
        fix="stop the supervisor and start it again, so that both run the same release",
    )


def row_place(row: int) -> tuple[int, int]:
    """Index and generation in a row's number."""
    return row % ROWS, row // ROWS


def column_place(column: int) -> tuple[int, int]:
    """Index and generation in a column's number."""
    return column % COLUMNS, column // COLUMNS


def row_offset(index: int) -> int:
    """The first cell of a row."""
    return FIRST_ROW + index * ROW_CELLS


def used_rows(cells: Cells) -> list[tuple[int, int]]:
    """First cell and generation of every row somebody owns."""
    generations: list[int] = cells[FIRST_GENERATION : FIRST_GENERATION + ROWS].tolist()
    return [(row_offset(index), generation) for index, generation in enumerate(generations) if generation]


class InFlightBoard:
    """
    The supervisor's side: makes the memory, hands out rows and columns.

    The numbers it gives are not 0 and carry the generation; they are passed on as they are.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """Not inheritable: pass it on by `pass_fds`."""
        self._memory, self._cells = map_cells(fd)
        self._rows = _Places(ROWS, _ROW_BITS, "gateway processes")
        self._columns = _Places(COLUMNS, COLUMN_BITS, "workers")

    @classmethod
    def create(cls) -> InFlightBoard:
        """A fresh board; memory is taken only for rows that are used."""
        fd = anonymous_file("gateway-in-flight")
        os.ftruncate(fd, _SIZE_BYTES)
        os.pwrite(fd, _THIS_SHAPE.to_bytes(8, sys.byteorder), 8 * _SHAPE)
        return cls(fd)

    def open_row(self) -> int:
        """A row for a gateway process about to start."""
        row = self._rows.take()
        index, generation = row_place(row)
        self._cells[FIRST_GENERATION + index] = generation
        self._cells[EPOCH] += 1
        return row

    def zero_row(self, row: int) -> None:
        """The row's process is dead (waited for): what it had in flight counts no more. Idempotent."""
        index, generation = row_place(row)
        if self._cells[FIRST_GENERATION + index] != generation:
            return
        # First out of the sums, then zeroed: nobody may see half a row.
        self._cells[FIRST_GENERATION + index] = 0
        self._cells[EPOCH] += 1
        first = row_offset(index)
        self._cells[first : first + ROW_CELLS] = memoryview(bytes(8 * ROW_CELLS)).cast("q")
        self._rows.give_back(row)

    def open_column(self) -> int:
        """A column for one launch of a worker."""
        return self._columns.take()

    def close_column(self, column: int) -> None:
        """The launch is over; what is left in its column will not count for the launch that gets it next."""
        self._columns.give_back(column)

    def column_sum(self, column: int) -> int:
        """In flight on one launch, all processes together."""
        index, generation = column_place(column)
        total = 0
        for first, owner in used_rows(self._cells):
            found = self._cells[first + IN_FLIGHT + index] - (owner << ROW_SHIFT | generation << COUNT_BITS)
            if 0 <= found < COUNTS:
                total += found
        return total

    def row_sum(self, row: int) -> int:
        """In flight in one process, all launches together, those that are over included."""
        index, generation = row_place(row)
        first = row_offset(index) + IN_FLIGHT
        counted: list[int] = self._cells[first : first + COLUMNS].tolist()
        return sum(cell & (COUNTS - 1) for cell in counted if cell >> ROW_SHIFT == generation)

    def total(self) -> int:
        """Everything in flight anywhere, requests of API keys not counted again. Zero at idle."""
        return sum(self.row_sum(row) for row in self._rows.taken)

    def close(self) -> None:
        """Unmap and close the descriptor. Idempotent."""
        if self.fd < 0:
            return
        self._cells.release()
        self._memory.close()
        os.close(self.fd)
        self.fd = -1


class _Places:
    """Places handed out oldest first, each time under a number that was not given out for a long time."""

    def __init__(self, places: int, generation_bits: int, users: str) -> None:
        self._places = places
        self._generations = 1 << generation_bits
        self._users = users
        self._free = deque(range(places))
        self._generation = 0
        self.taken: set[int] = set()

    def take(self) -> int:
        if not self._free:
            raise BoardFull(f"the in-flight board has places for {self._places} {self._users} at a time")
        # Never 0: a cell that was never written must belong to nobody.
        self._generation = self._generation % (self._generations - 1) + 1
        number = self._generation * self._places + self._free.popleft()
        self.taken.add(number)
        return number

    def give_back(self, number: int) -> None:
        if number in self.taken:
            self.taken.remove(number)
            self._free.append(number % self._places)
