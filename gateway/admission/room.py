"""Where the requests for one model wait in one gateway process: a thin shell around the line, which acts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeAlias

from gateway.admission.drain_rate import DrainRate
from gateway.admission.fleet import Fleet, LeaseT
from gateway.admission.limits import QueueLimits
from gateway.admission.line import Line, Place
from gateway.clock import Clock
from gateway.errors import Rejected
from gateway.protocol.request import RequestView
from gateway.types import Outlook, RejectionReason

LOOK_S = 0.01
"""Between two looks at what other processes have given back. Only who has somebody waiting looks."""
LONGEST_RETRY_AFTER_S = 60.0
FIRST_RETRY_AFTER_S = 5.0
"""As long as nothing has ended by which to judge: a second refusal costs less than a long wait for nothing."""
SHUTDOWN_RETRY_AFTER_S = 1.0
_ANYWHERE: frozenset[str] = frozenset()


class Timer(Protocol):
    """A call to come; `asyncio.TimerHandle`."""

    def cancel(self) -> None: ...


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Timer]


class Turn(Generic[LeaseT]):
    """
    One request's stay in the room, as a context: whoever leaves it has given up the place, or a lease that was granted
    and not taken.
    """

    __slots__ = ("_granted", "_over", "_refusal", "_room", "_wake", "place", "request")

    def __init__(self, room: Room[LeaseT], request: RequestView, place: Place, wake: Callable[[], object]) -> None:
        self.request = request
        self.place = place
        self._room = room
        self._wake = wake
        self._granted: LeaseT | None = None
        self._refusal: Rejected | None = None
        self._over = False

    def __enter__(self) -> Turn[LeaseT]:
        self._room.join(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        granted, self._granted = self._granted, None
        if not self._over:
            self._over = True
            self._room.leave(self)
        elif granted is not None:
            granted.__exit__(kind, error, trace)

    def over(self) -> bool:
        """The wait is over: `take` says how it ended."""
        return self._over

    def take(self) -> LeaseT | None:
        """
        The lease, which counts already; None when no worker can be had.

        Raises:
            Rejected: Too many wait, or too long.
        """
        if self._refusal is not None:
            raise self._refusal
        granted, self._granted = self._granted, None
        return granted

    def end(self, granted: LeaseT | None, refusal: Rejected | None = None) -> None:
        """The room's decision."""
        self._granted = granted
        self._refusal = refusal
        self._over = True
        self._wake()


class Room(Generic[LeaseT]):
    """
    Decides who gets a permit that has come free, and how long others wait.

    It looks when somebody joins, when a permit is given back in this process, and every `LOOK_S` as long as anybody
    waits: permits of other processes, workers that become READY, a drain and limits of time are all found that way.

    Args:
        model: Whose room it is.
        fleet: Has the permits.
        limits: Of this process.
        clock: For the limits and the rate.
        on_depth: Told how many wait, whenever that has changed.
        call_later: Calls back after some seconds; the running loop's.
    """

    def __init__(
        self,
        model: str,
        fleet: Fleet[LeaseT],
        limits: QueueLimits,
        clock: Clock,
        on_depth: Callable[[int], object],
        call_later: CallLater | None = None,
    ) -> None:
        self._model = model
        self._fleet = fleet
        self._limits = limits
        self._clock = clock
        self._on_depth = on_depth
        self._call_later = call_later or _on_the_running_loop
        self._line = Line()
        self._turns: dict[int, Turn[LeaseT]] = {}
        self._rate = DrainRate()
        self._depth = 0
        self._firsts: list[Place] = []
        self._timer: Timer | None = None
        self._outlook = Outlook.BUSY
        self._next_expiry_s = math.inf
        self._looking = False

    def __len__(self) -> int:
        return len(self._line)

    def turn(
        self,
        request: RequestView,
        excluded: frozenset[str],
        since_s: float,
        wake: Callable[[], object],
        *,
        again: bool,
    ) -> Turn[LeaseT]:
        """A place, to be entered at once. `wake` is called when the wait is over."""
        return Turn(self, request, Place(since_s, excluded, again), wake)

    def released(self) -> None:
        """A permit was given back in this process."""
        self._rate.freed(self._clock.monotonic())
        if self._turns:
            self.look()

    def join(self, turn: Turn[LeaseT]) -> None:
        """Stand in line, unless it is full; served at once if nobody else is to be."""
        now_s = self._clock.monotonic()
        place = turn.place
        place.expires_s = now_s + self._limits.timeout_s
        self._turns[id(place)] = turn
        self._line.join(place)
        self._next_expiry_s = min(self._next_expiry_s, place.expires_s)
        if place in self._line.firsts():
            self.look()
        if not turn.over() and not place.again and self._line.newcomers > self._limits.max_queued:
            full = f"The queue of this model is full: {self._limits.max_queued} requests wait already."
            self._refuse(turn, RejectionReason.QUEUE_FULL, full, now_s)
        self._settle()

    def leave(self, turn: Turn[LeaseT]) -> None:
        """The client has left, or the exchange ends."""
        self._drop(turn)
        self._settle()

    def look(self) -> None:
        """Serve whom there is a permit for, send away who has waited too long or in vain."""
        if self._looking:
            return  # a permit given back by a look: the same look sees it
        self._looking = True
        try:
            if self._fleet.draining:
                self._send_all_away()
                return
            self._serve()
            if self._turns:
                self._expire(self._clock.monotonic())
        finally:
            self._looking = False
            self._settle(looked=True)

    def _serve(self) -> None:
        while True:
            for place in self._line.firsts():
                turn = self._turns[id(place)]
                lease = self._fleet.lease(self._model, turn.request, place.excluded, place.since_s)
                if lease is not None:
                    lease.hold()
                    self._drop(turn)
                    turn.end(lease)
                    break
            else:
                return

    def _expire(self, now_s: float) -> None:
        outlook = self._fleet.outlook(self._model, _ANYWHERE)
        places = self._line.retries  # each has an outlook of its own, and there are few
        if outlook is not self._outlook or now_s >= self._next_expiry_s:
            places = list(self._line)
            self._next_expiry_s = math.inf
        back = self._outlook is Outlook.COMING and outlook is Outlook.BUSY
        self._outlook = outlook
        outlooks = {_ANYWHERE: outlook}
        for place in places:
            turn = self._turns[id(place)]
            outlook = outlooks.get(place.excluded) or self._fleet.outlook(self._model, place.excluded)
            outlooks[place.excluded] = outlook
            if back:
                # Those who waited for a restart would all be sent away at the moment at which it is over.
                place.expires_s = now_s + self._limits.timeout_s
            until_s = place.expires_s
            if outlook is Outlook.COMING and not place.again:
                until_s += max(0.0, self._limits.coming_back_s - self._limits.timeout_s)
            elif outlook is not Outlook.BUSY:
                until_s = -math.inf  # tried again: the failure is told now rather than after a restart
            if now_s < until_s:
                self._next_expiry_s = min(self._next_expiry_s, until_s)
            elif outlook is Outlook.BUSY:
                busy = f"All workers of this model were busy for {self._limits.timeout_s:g} s."
                self._refuse(turn, RejectionReason.QUEUE_TIMEOUT, busy, now_s)
            else:
                self._drop(turn)
                turn.end(None)

    def _send_all_away(self) -> None:
        for turn in list(self._turns.values()):
            self._drop(turn)
            turn.end(
                None,
                Rejected(
                    503,
                    "The gateway is shutting down. Please try again.",
                    code="shutting_down",
                    retry_after_s=SHUTDOWN_RETRY_AFTER_S,
                    reason=RejectionReason.SHUTTING_DOWN,
                ),
            )

    def _refuse(self, turn: Turn[LeaseT], reason: RejectionReason, why: str, now_s: float) -> None:
        """429, to come back when those who wait now have been served, going by the permits given back of late."""
        pause_s = self._rate.seconds_for(len(self._line), now_s)
        self._drop(turn)
        turn.end(
            None,
            Rejected(
                429,
                f"{why} Please try again later.",
                type="requests",
                code=reason,
                retry_after_s=FIRST_RETRY_AFTER_S if pause_s is None else min(pause_s, LONGEST_RETRY_AFTER_S),
                reason=reason,
            ),
        )

    def _drop(self, turn: Turn[LeaseT]) -> None:
        self._turns.pop(id(turn.place), None)
        self._line.leave(turn.place)

    def _settle(self, *, looked: bool = False) -> None:
        """After any change: tell how many wait, tell other processes who is first, look again in a while."""
        depth = len(self._line)
        if depth != self._depth:
            self._depth = depth
            self._on_depth(depth)
        firsts = self._line.firsts()
        if firsts != self._firsts or (looked and firsts):
            self._firsts = firsts
            self._fleet.claim(self._model, [(place.since_s, place.excluded) for place in firsts])
        if not depth:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self._call_later(LOOK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.look()


def _on_the_running_loop(seconds: float, call: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, call)
