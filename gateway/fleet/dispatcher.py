"""The dispatcher: view and scheduler joined into leases (`proxy.interfaces.Dispatcher`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.clock import Clock
from gateway.fleet.lease import WorkerLease
from gateway.fleet.view import FleetView
from gateway.messages import WorkerFailure
from gateway.protocol.request import RequestView
from gateway.types import Candidate, ModelView


class Choice(Protocol):
    """What the dispatcher needs of a routing decision."""

    @property
    def worker(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Scheduler(Protocol):
    """Chooses among candidates; `routing.Router` does."""

    def choose(
        self, model: str, prefix: bytes, excluded: frozenset[str], candidates: Sequence[Candidate]
    ) -> Choice | None: ...


class FleetDispatcher:
    """
    Chooses workers for the relay.

    Args:
        view: Where the candidates come from.
        scheduler: The routing decision.
        clock: For leases and breakers.
        on_failure: Told of every failure of a worker (the link limits the rate).
    """

    def __init__(
        self, view: FleetView, scheduler: Scheduler, clock: Clock, on_failure: Callable[[WorkerFailure], None]
    ) -> None:
        self._view = view
        self._scheduler = scheduler
        self._clock = clock
        self._on_failure = on_failure

    @property
    def draining(self) -> bool:
        """True once no new work may be accepted: this process was told so, or the whole fleet drains."""
        return self._view.draining

    def models(self) -> tuple[ModelView, ...]:
        """All public models, in configuration order."""
        return self._view.snapshot.models

    def resolve(self, name: str) -> ModelView | None:
        """The model that a name or alias means."""
        return self._view.resolve(name)

    def lease(self, model: str, request: RequestView, excluded: frozenset[str]) -> WorkerLease | None:
        """A lease on the chosen worker of `model` (a configured name), None when none may serve now."""
        members = self._view.members(model)
        if not members:
            return None
        now_s = self._clock.monotonic()
        choice = self._scheduler.choose(
            model, request.prefix, excluded, [member.candidate(now_s) for member in members]
        )
        if choice is None:
            return None
        for member in members:
            if member.view.name == choice.worker:
                return WorkerLease(member, choice.policy, choice.reason, self._clock, self._on_failure)
        raise RuntimeError(f"the scheduler chose {choice.worker!r}, which was not among the candidates")

    async def wait_for_worker(self, model: str, timeout_s: float) -> bool:
        """Wait until a worker of `model` is READY, if one is on its way."""
        return await self._view.wait_for_worker(model, timeout_s)
