"""Between the relay and the fleet: a permit at once, or a place in the model's room (`proxy.interfaces.Dispatcher`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol

from gateway.admission.fleet import Fleet, LeaseT
from gateway.admission.limits import QueueLimits
from gateway.admission.room import CallLater, Room, Turn
from gateway.clock import Clock
from gateway.protocol.request import RequestView
from gateway.types import ModelView


class QueueGauges(Protocol):
    """Where it is shown how many wait; `metrics.SlotCounters` has it."""

    def queue_depth(self, model: str, waiting: int) -> None: ...


class Admission(Generic[LeaseT]):
    """
    One room for each model.

    Args:
        fleet: Has the workers and their permits.
        clock: For limits and rates.
        limits: By model, of this process; models without take `default`.
        gauges: None: nobody is told.
        call_later: Calls back after some seconds; the running loop's.
    """

    def __init__(
        self,
        fleet: Fleet[LeaseT],
        clock: Clock,
        limits: Mapping[str, QueueLimits] | None = None,
        default: QueueLimits | None = None,
        gauges: QueueGauges | None = None,
        call_later: CallLater | None = None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._limits = dict(limits or {})
        self._default = default if default is not None else QueueLimits()
        self._gauges = gauges
        self._call_later = call_later
        # Those with limits at once, so that they know how fast permits come free before anybody waits.
        self._rooms = {model: self._room(model) for model in self._limits}

    @property
    def draining(self) -> bool:
        """True once no new work may be accepted."""
        return self._fleet.draining

    @property
    def waiting(self) -> int:
        """Requests in all rooms; zero at idle."""
        return sum(map(len, self._rooms.values()))

    def models(self) -> tuple[ModelView, ...]:
        """All public models, in configuration order."""
        return self._fleet.models()

    def resolve(self, name: str) -> ModelView | None:
        """The model that a name or alias means."""
        return self._fleet.resolve(name)

    def lease(self, model: str, request: RequestView, excluded: frozenset[str], since_s: float) -> LeaseT | None:
        """A lease now, for a request that came at `since_s`; None: stand in line, if only for a moment."""
        room = self._rooms.get(model)
        if room is not None and len(room):
            return None
        return self._fleet.lease(model, request, excluded, since_s)

    def queue(
        self,
        model: str,
        request: RequestView,
        excluded: frozenset[str],
        since_s: float,
        wake: Callable[[], object],
        *,
        again: bool,
    ) -> Turn[LeaseT]:
        """
        A place in the room of a configured model, to be entered at once.

        Args:
            since_s: When the request was complete (CLOCK_MONOTONIC).
            wake: Called when the wait is over.
            again: The request was admitted before, and its attempt failed.
        """
        room = self._rooms.get(model)
        if room is None:
            room = self._rooms[model] = self._room(model)
        return room.turn(request, excluded, since_s, wake, again=again)

    def _room(self, model: str) -> Room[LeaseT]:
        gauges = self._gauges

        def on_depth(waiting: int) -> None:
            if gauges is not None:
                gauges.queue_depth(model, waiting)

        limits = self._limits.get(model, self._default)
        room = Room(model, self._fleet, limits, self._clock, on_depth, self._call_later)
        self._fleet.on_release(model, room.released)
        return room
