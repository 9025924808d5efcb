"""A gateway process's side of the in-flight board: it writes its own row and adds up everybody's."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from gateway.errors import ControlUnavailable
from gateway.fleet.board import (
    CLAIMS,
    COUNT_BITS,
    COUNTS,
    EPOCH,
    FIRST_GENERATION,
    IN_FLIGHT,
    KEY_CELLS,
    KEYS,
    LOOKED_AT,
    ROW_SHIFT,
    Cells,
    column_place,
    map_cells,
    row_offset,
    row_place,
    used_rows,
)

_CLAIM_SHIFT = 40
"""A claim's time in milliseconds takes so many bits: 34 years of CLOCK_MONOTONIC."""
_CLAIM_TIMES = 1 << _CLAIM_SHIFT
_KEY_OWNER_SHIFT = COUNT_BITS + 32
_KEY_GENERATIONS = (1 << 11) - 1
MOST_KEYS = KEY_CELLS * 3 // 4
"""Keys with a limit that one process counts for all to see; a fuller table would be slow to search."""
_NO_PLACE = -1


class BoardRow:
    """
    The row of one gateway process: makes columns, and knows whose rows are added up with it.
    """

    __slots__ = ("_cells", "_epoch", "_fd", "_first", "_generation", "_keys", "_memory", "_others", "keys_placed")

    def __init__(self, fd: int, memory: mmap.mmap, cells: Cells, row: int) -> None:
        index, self._generation = row_place(row)
        self._fd = fd
        self._memory = memory
        self._cells = cells
        self._first = row_offset(index)
        self._others: list[tuple[int, int]] = []
        self._epoch = -1
        self._keys: dict[str, KeyCount] = {}
        self.keys_placed = 0

    @classmethod
    def attach(cls, fd: int, row: int) -> BoardRow:
        """
        Open the inherited board; the descriptor is ours from now on and closed on failure.

        Raises:
            ControlUnavailable: It is no board, another release's, or the row is somebody else's.
        """
        try:
            memory, cells = map_cells(fd)
        except ControlUnavailable:
            os.close(fd)
            raise
        mine = cls(fd, memory, cells, row)
        index, generation = row_place(row)
        if cells[FIRST_GENERATION + index] != generation:
            mine.close()
            raise ControlUnavailable(
                "this process has no row in the supervisor's in-flight board any more",
                fix="start the gateway with `gateway up`, which starts its gateway processes itself",
            )
        return mine

    def column(self, number: int) -> Column:
        """The column of one launch, as the supervisor numbered it."""
        return Column(self, self._cells, self._first, self._generation, number)

    def key(self, key_id: str) -> KeyCount:
        """The requests of one API key; the same object for the same key."""
        found = self._keys.get(key_id)
        if found is None:
            found = self._keys[key_id] = KeyCount(self, self._cells, self._first + KEYS, self._generation, key_id)
        return found

    def others(self) -> Sequence[tuple[int, int]]:
        """First cell and tag of the rows of all other processes; looked up anew when the set has changed."""
        if self._cells[EPOCH] != self._epoch:
            self.look()
        return self._others

    def look(self) -> None:
        """Find out who else there is. `others` does when that has changed; now and then is right in any case."""
        self._epoch = self._cells[EPOCH]
        self._others = [(first, owner << ROW_SHIFT) for first, owner in used_rows(self._cells) if first != self._first]

    def looked(self, now_ms: int) -> None:
        """Whoever waits here has looked for what is free: its claims stand."""
        self._cells[self._first + LOOKED_AT] = now_ms

    def close(self) -> None:
        """Unmap and close the descriptor; what was counted stays for the supervisor to zero. Idempotent."""
        if self._fd < 0:
            return
        self._cells.release()
        self._memory.close()
        os.close(self._fd)
        self._fd = -1


class Column:
    """One launch, counted in one row and added up over all."""

    __slots__ = ("_cells", "_claim", "_claim_tag", "_count", "_count_tag", "_index", "_row", "_tag")

    def __init__(self, row: BoardRow, cells: Cells, first: int, owner: int, number: int) -> None:
        index, generation = column_place(number)
        self._row = row
        self._cells = cells
        self._index = IN_FLIGHT + index
        self._count = first + IN_FLIGHT + index
        self._claim = first + CLAIMS + index
        self._tag = generation << COUNT_BITS
        self._count_tag = owner << ROW_SHIFT | self._tag
        self._claim_tag = generation << _CLAIM_SHIFT

    def count(self, in_flight: int) -> None:
        """So many are in flight here."""
        self._cells[self._count] = self._count_tag + in_flight

    def others(self) -> int:
        """In flight in all other processes."""
        total = 0
        cells, index, tag = self._cells, self._index, self._tag
        for first, owner in self._row.others():
            # A cell of another generation is below or far above what a count can be.
            found = cells[first + index] - owner - tag
            if 0 <= found < COUNTS:
                total += found
        return total

    def claim(self, since_ms: int) -> None:
        """The first in line here waits for this launch since then (CLOCK_MONOTONIC); 0: nobody does."""
        self._cells[self._claim] = self._claim_tag + since_ms

    def oldest_claim(self, looked_since_ms: int) -> int | None:
        """
        Since when another process's first in line waits for this launch, None when nobody does.

        Args:
            looked_since_ms: Claims of a process that has not looked since then do not stand: it hangs, or is dead.
        """
        cells = self._cells
        place = self._index + CLAIMS - IN_FLIGHT
        oldest = _CLAIM_TIMES
        for first, _ in self._row.others():
            since_ms = cells[first + place] - self._claim_tag
            if 0 < since_ms < oldest and cells[first + LOOKED_AT] >= looked_since_ms:
                oldest = since_ms
        return oldest if oldest < _CLAIM_TIMES else None


class KeyCount:
    """
    The requests one API key has in flight, counted in one row and added up over all.

    Keys come and go with the keys file, and no one numbers them: each row has a hash table of its own (linear probing,
    places are kept for the life of the process), and the other rows are asked by the key's id. A process that has met
    `MOST_KEYS` keys with a limit counts further ones alone.
    """

    __slots__ = ("_cells", "_first", "_number", "_place", "_row", "_tag")

    def __init__(self, row: BoardRow, cells: Cells, first: int, generation: int, key_id: str) -> None:
        self._row = row
        self._cells = cells
        self._first = first
        # The 32 random bits of an id are what makes it unique in the keys file.
        self._number = int(key_id.removeprefix("key-"), 16) << COUNT_BITS
        self._tag = _key_owner(generation) + self._number
        self._place: int | None = None

    def count(self, in_flight: int) -> None:
        """So many are in flight here."""
        if self._place is None:
            if not in_flight:
                return
            self._place = self._free_place()
        if self._place >= 0:
            self._cells[self._place] = self._tag + in_flight

    def others(self) -> int:
        """In flight in all other processes."""
        total = 0
        cells = self._cells
        start = self._start()
        for first, owner in self._row.others():
            tag = _key_owner(owner >> ROW_SHIFT) + self._number
            place = start
            # The table is never full: there is an empty cell behind every key.
            while cell := cells[first + KEYS + place]:
                if 0 <= cell - tag < COUNTS:
                    total += cell - tag
                    break
                place = (place + 1) % KEY_CELLS
        return total

    def _start(self) -> int:
        return (self._number >> COUNT_BITS) % KEY_CELLS

    def _free_place(self) -> int:
        if self._row.keys_placed >= MOST_KEYS:
            return _NO_PLACE
        place = self._start()
        while self._cells[self._first + place]:
            place = (place + 1) % KEY_CELLS
        self._row.keys_placed += 1
        return self._first + place


def _key_owner(generation: int) -> int:
    return (generation % _KEY_GENERATIONS + 1) << _KEY_OWNER_SHIFT
