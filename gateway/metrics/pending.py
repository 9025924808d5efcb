"""Additions to cells, collected: adding to a list takes far fewer instructions than to shared memory."""

from __future__ import annotations

from gateway.metrics.board import Cells


class PendingCells:
    """
    What is to be added to cells, until `flush`.

    Args:
        cells: The process's own board; only its writer may have this.
    """

    __slots__ = ("_sums", "_touched", "cells")

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self._sums: list[float] = [0.0] * len(cells)
        self._touched: list[int] = []

    def add(self, cell: int, value: float) -> None:
        """Add `value` to a cell, with the next `flush`."""
        sums = self._sums
        before = sums[cell]
        if before == 0.0:
            self._touched.append(cell)
        sums[cell] = before + value

    def flush(self) -> None:
        """Write everything into the cells, each of them once."""
        sums, cells = self._sums, self.cells
        for cell in self._touched:
            value = sums[cell]
            # A cell whose additions added up to nothing in between stands here twice.
            if value != 0.0:
                sums[cell] = 0.0
                cells[cell] += value
        self._touched = []
