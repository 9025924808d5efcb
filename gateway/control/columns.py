"""Which column of the in-flight board each launch of a worker has: told to gateway processes by snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.fleet import InFlightBoard
from gateway.types import WorkerView


class Columns:
    """
    One column for each launch that gateway processes may use, from its first snapshot to the first one without it.

    A launch is what a worker's name means at the moment, so what is left in flight on an earlier one never counts
    against it.
    """

    def __init__(self, board: InFlightBoard) -> None:
        self._board = board
        self._columns: dict[tuple[str, str], int] = {}

    def placed(self, views: Iterable[WorkerView]) -> list[WorkerView]:
        """The views with their columns; columns of launches that are not among them are closed."""
        found = list(views)
        launches = [(view.name, view.launch_id) for view in found]
        for gone in self._columns.keys() - set(launches):
            self._board.close_column(self._columns.pop(gone))
        return [
            replace(view, column=self._of(launch)) if view.launch_id else view
            for view, launch in zip(found, launches, strict=True)
        ]

    def in_flight(self, worker: WorkerView) -> int:
        """Attempts in flight on the worker's launch, all gateway processes together, as of now."""
        column = self._columns.get((worker.name, worker.launch_id))
        return self._board.column_sum(column) if column is not None else 0

    def _of(self, launch: tuple[str, str]) -> int:
        column = self._columns.get(launch)
        if column is None:
            column = self._columns[launch] = self._board.open_column()
        return column
