"""The dispatcher: view and scheduler joined into leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gateway.candidate import Candidate
from gateway.clock import Clock
from gateway.fleet.lease import WorkerLease
from gateway.fleet.view import FleetView
from gateway.messages import WorkerFailure
from gateway.protocol.request import RequestView
from gateway.types import ModelView, Outlook, WorkerState


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
        self, model: str, prompt: RequestView, excluded: frozenset[str], candidates: Sequence[Candidate]
    ) -> Choice | None: ...


class FleetDispatcher:
    """
    Chooses workers, and gives out the permits to use them: a lease is one (`admission.Fleet`).

    A model with a limit has that many permits for each worker, all gateway processes together. A permit is granted iff
    the sum on the board is below the limit, and nobody in another process has waited for it noticeably longer.

    Args:
        view: Where the candidates come from.
        scheduler: The routing decision.
        clock: For leases, breakers and claims.
        on_failure: Told of every failure of a worker (the link limits the rate).
        limits: Attempts that each worker of a model may have in flight, as long as the snapshot does not say it; models
            without have no limit.
    """

    def __init__(
        self,
        view: FleetView,
        scheduler: Scheduler,
        clock: Clock,
        on_failure: Callable[[WorkerFailure], None],
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self._view = view
        self._scheduler = scheduler
        self._clock = clock
        self._on_failure = on_failure
        self._limits = dict(limits or {})
        self._on_release: dict[str, Callable[[], None]] = {}

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

    def lease(
        self, model: str, request: RequestView, excluded: frozenset[str], since_s: float = 0.0
    ) -> WorkerLease | None:
        """
        A lease on the chosen worker of `model` (a configured name), None when none may serve now.

        Args:
            since_s: When the request came (CLOCK_MONOTONIC): others in other processes may have come earlier.
        """
        members = self._view.members(model)
        if not members:
            return None
        now_s = self._clock.monotonic()
        limit = self._view.limit(model, self._limits.get(model))
        released = None
        if limit is None:
            alone = self._view.alone
            candidates = [member.candidate(now_s, alone=alone) for member in members]
        else:
            candidates = [member.limited_candidate(now_s, limit, since_s) for member in members]
            released = self._on_release.get(model)
        choice = self._scheduler.choose(model, request, excluded, candidates)
        if choice is None:
            return None
        for member in members:
            if member.view.name == choice.worker:
                return WorkerLease(member, choice.policy, choice.reason, self._clock, self._on_failure, released)
        raise RuntimeError(f"the scheduler chose {choice.worker!r}, which was not among the candidates")

    def outlook(self, model: str, excluded: frozenset[str]) -> Outlook:
        """What a request that got no lease may wait for."""
        members = self._view.members(model)
        if any(member.view.state is WorkerState.READY and member.view.name not in excluded for member in members):
            return Outlook.BUSY
        return Outlook.COMING if self._view.coming(model) else Outlook.NONE

    def claim(self, model: str, firsts: Sequence[tuple[float, frozenset[str]]]) -> None:
        """
        Tell the other processes who is first in line here for each worker of a model.

        What cannot be used is not claimed: others would leave it alone for nothing.
        """
        if self._view.limit(model, self._limits.get(model)) is None:
            firsts = ()  # nor does a claim stay that was made when there was one
        now_s = self._clock.monotonic()
        members = self._view.members(model)
        ready = [member for member in members if member.view.state is WorkerState.READY]
        useful = [member for member in ready if member.breaker.admits(now_s)] or ready
        for member in members:
            since_s = None
            if member in useful:
                since_s = next((since_s for since_s, excluded in firsts if member.view.name not in excluded), None)
            member.claim(since_s)
        self._view.looked(now_s)

    def on_release(self, model: str, released: Callable[[], None]) -> None:
        """Call `released` whenever a lease has been left in this process that was taken under a limit."""
        self._on_release[model] = released
