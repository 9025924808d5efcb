"""The published side of a worker: its state follows the table, and every change is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gateway.clock import Clock
from gateway.types import WorkerAddress, WorkerState, WorkerView
from gateway.workers.lifecycle import LifeEvent, follow
from gateway.workers.phases import StartPhase
from gateway.workers.status import WorkerStatus

OnChange = Callable[[WorkerStatus], None]


class StatusBoard:
    """
    Holds a worker's status. Written by the worker's own task alone.

    `api_key` is what the worker wants as a bearer token; it is in the view for gateway processes, never in the status.
    """

    def __init__(self, first: WorkerStatus, clock: Clock, on_change: OnChange) -> None:
        self._status = first
        self._clock = clock
        self._on_change = on_change
        self.api_key: str | None = None

    @property
    def status(self) -> WorkerStatus:
        """The latest."""
        return self._status

    @property
    def state(self) -> WorkerState:
        """The latest state."""
        return self._status.state

    @property
    def view(self) -> WorkerView:
        """What gateway processes get."""
        status = self._status
        return WorkerView(
            name=status.name,
            model=status.model,
            state=status.state,
            launch_id=status.launch_id,
            address=status.address or WorkerAddress(),
            changed_at_s=status.changed_at_s,
            was_ready_at_s=status.was_ready_at_s,
            api_key=self.api_key,
            max_model_len=status.max_model_len,
        )

    def follow(self, event: LifeEvent, **changes: Any) -> None:
        """Make a transition, with whatever else changes at the same moment. `changes` are fields of WorkerStatus."""
        now_s = self._clock.monotonic()
        leaving, entering = self._status.state, follow(self._status.state, event)
        if WorkerState.READY in (leaving, entering):
            changes.setdefault("was_ready_at_s", now_s)
        self.set(state=entering, changed_at_s=now_s, **changes)

    def set(self, **changes: Any) -> None:
        """Change fields of the status other than the state; tells only if something did change."""
        changed = replace(self._status, **changes)
        if changed != self._status:
            self._status = changed
            self._on_change(changed)

    def show(self, phase: StartPhase) -> None:
        """What a starting worker does."""
        self.set(phase=phase.words, progress=phase.progress)

    def count_restart(self, reason: str) -> None:
        """One more launch because of `reason`."""
        reasons = dict(self._status.restart_reasons)
        reasons[reason] = reasons.get(reason, 0) + 1
        self.set(restarts=self._status.restarts + 1, restart_reasons=tuple(sorted(reasons.items())))
