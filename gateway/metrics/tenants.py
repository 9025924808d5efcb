"""
The tenants' counts: a table at the end of each board.

A tenant is the name of an API key. Which there are is the operator's to say, and changes while a process runs, whereas
the cells of a board are laid out once. So a board has room for a number of tenants, and its process gives a tenant a
slot with its first request, by writing the name there; the supervisor reads the names when it adds boards up. A slot is
never given to another tenant: what was counted for a revoked key stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.metrics.catalogue import (
    ANONYMOUS,
    OTHER,
    TENANT_IN_FLIGHT,
    TENANT_OUTPUT_TOKENS,
    TENANT_PROMPT_TOKENS,
    TENANT_REQUESTS,
    TENANTS_WITH_A_NAME,
    Metric,
)
from gateway.types import Outcome

if TYPE_CHECKING:
    from gateway.metrics.board import Cells

CELL_BYTES = 8
NAME_CELLS = 8
NAME_BYTES = NAME_CELLS * CELL_BYTES

IN_FLIGHT = 1 + NAME_CELLS
REQUESTS = {outcome: IN_FLIGHT + 1 + index for index, outcome in enumerate(Outcome)}
PROMPT_TOKENS = IN_FLIGHT + 1 + len(Outcome)
OUTPUT_TOKENS = PROMPT_TOKENS + 1
SLOT_CELLS = OUTPUT_TOKENS + 1
"""A slot: the length of the name (0: it is free), the name, and the counts, each at its distance from the first."""

_NOBODY, _OTHER, _FIRST = 0, 1, 2

SLOT_SERIES: tuple[tuple[Metric, tuple[str, ...], int], ...] = (
    *((TENANT_REQUESTS, (str(outcome),), cell) for outcome, cell in REQUESTS.items()),
    (TENANT_PROMPT_TOKENS, (), PROMPT_TOKENS),
    (TENANT_OUTPUT_TOKENS, (), OUTPUT_TOKENS),
    (TENANT_IN_FLIGHT, (), IN_FLIGHT),
)
"""What a slot counts: the metric, its labels after the tenant, and the cell."""


@dataclass(frozen=True, slots=True)
class TenantTable:
    """
    Where the table is on a board.

    Two slots are set apart: one that is never named, for requests that are nobody's, so that counting need not ask; and
    one for all tenants that found the table full.

    Args:
        offset: Its first cell.
    """

    offset: int

    @property
    def end(self) -> int:
        """The first cell after it."""
        return self.slot(_FIRST + TENANTS_WITH_A_NAME)

    def named(self, cells: Cells, copy: Sequence[float]) -> list[tuple[str, int]]:
        """
        Each tenant that has a slot, and the slot's first cell.

        Args:
            cells: The board's.
            copy: The same cells, as they were read for adding up.
        """
        found: list[tuple[str, int]] = []
        with cells.cast("B") as memory:
            for slot in range(self.slot(_OTHER), self.end, SLOT_CELLS):
                length = int(copy[slot])
                if not length:
                    continue
                begin = (slot + 1) * CELL_BYTES
                name = bytes(memory[begin : begin + length])
                # Names have no zero bytes: one that has is still on its way here from the writer's processor, and its
                # counts are for the next reading.
                if 0 not in name:
                    found.append((name.decode("ascii"), slot))
        return found

    def slot(self, number: int) -> int:
        """A slot's first cell."""
        return self.offset + number * SLOT_CELLS


class TenantSlots:
    """
    The slots of one gateway process, the only one that writes them.

    Args:
        table: Where they are.
        cells: The process's own board.
    """

    def __init__(self, table: TenantTable, cells: Cells) -> None:
        self._cells = cells
        self._table = table
        self._free = list(reversed(range(table.slot(_FIRST), table.end, SLOT_CELLS)))
        self.known: dict[str | None, int] = {None: table.slot(_NOBODY)}
        """First cells, by tenant; those of tenants that have not been seen are given by `claim`."""

    def claim(self, tenant: str | None) -> int:
        """The first cell of a tenant's slot, which it is given if it has none; that of `other` when all are taken."""
        slot = self.known.get(tenant)
        if slot is not None:
            return slot
        name = (tenant or ANONYMOUS).encode("ascii")
        if self._free and len(name) <= NAME_BYTES:
            slot = self._free.pop()
        else:
            name, slot = OTHER.encode(), self._table.slot(_OTHER)
        if not self._cells[slot]:
            begin = (slot + 1) * CELL_BYTES
            # Not kept: a board whose cells somebody looks at cannot be closed.
            with self._cells.cast("B") as memory:
                memory[begin : begin + len(name)] = name
            self._cells[slot] = float(len(name))
        self.known[tenant] = slot
        return slot
