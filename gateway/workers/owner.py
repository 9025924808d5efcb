"""What the tasks of launched and static workers have in common."""

from __future__ import annotations

from gateway.types import WorkerState, WorkerView
from gateway.workers.board import OnChange, StatusBoard
from gateway.workers.inbox import Inbox, Order, WorkerCommand
from gateway.workers.services import WorkerServices
from gateway.workers.spec import WorkerSpec
from gateway.workers.status import WorkerStatus


class WorkerOwner:
    """A specification, an inbox for commands, and the board that only this owner's task writes."""

    def __init__(self, spec: WorkerSpec, services: WorkerServices, on_change: OnChange) -> None:
        self._spec = spec
        self._services = services
        self._inbox = Inbox(services.sleep)
        first = WorkerStatus(
            name=spec.name,
            model=spec.model,
            state=WorkerState.STOPPED,
            launch_id="",
            address=None,
            changed_at_s=services.clock.monotonic(),
            static=spec.static is not None,
            gpus=spec.gpus,
        )
        self._board = StatusBoard(first, services.clock, on_change)

    @property
    def spec(self) -> WorkerSpec:
        return self._spec

    @property
    def status(self) -> WorkerStatus:
        return self._board.status

    @property
    def view(self) -> WorkerView:
        return self._board.view

    def command(self, command: WorkerCommand, *, drain_s: float | None = None) -> None:
        self._inbox.put(Order(command, drain_s))
