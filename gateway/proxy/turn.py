"""
When a gateway process lets others have its processor, in the midst of a burst of events.

Events of many streams come in bursts: an engine writes one for each of its sequences after every step. Where the kernel
runs the client on the processor that the gateway runs on (the usual thing where both share a machine with few), every
client waits until the whole burst is through. A gateway process that offers its processor meanwhile lets those read
whose events are written already. Where nobody waits for this processor, an offer is a system call that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

TURN_S: Final = 60e-6
"""An offer is made after so long a turn: some five events."""
PAUSE_S: Final = 300e-6
"""An event that comes so much later than the one before begins a turn: the process has slept in between."""
LONG_S: Final = 500e-6
"""Clients that read what was written for them need less; who takes longer computes, and would take a whole time slice
every time."""
REST: Final = 100
"""After an offer that was taken for long, none is made for so many times as long: such takers get a hundredth of the
time at most."""


class Turn:
    """
    The turn of one gateway process, told of every event that is passed on.

    Args:
        give_way: Lets others who wait for this processor have it; returns when it is this process's again.
        now: CLOCK_MONOTONIC in seconds.
        turn_s: See `TURN_S`.
        pause_s: See `PAUSE_S`.
    """

    __slots__ = ("_began", "_give_way", "_last", "_now", "_pause_s", "_turn_s")

    def __init__(
        self,
        give_way: Callable[[], object],
        now: Callable[[], float] = monotonic,
        turn_s: float = TURN_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._last = 0.0
        self._began = 0.0
        self._turn_s = turn_s
        self._pause_s = pause_s
        self._give_way = give_way
        self._now = now

    def wrote(self, now: float) -> None:
        """An event was written to its client at `now`."""
        if now - self._last > self._pause_s:
            if now > self._began:  # else an offer was taken for long, not long ago
                self._began = now
        elif now - self._began > self._turn_s:
            self._give_way()
            after = self._now()
            taken = after - now
            self._began = after if taken < LONG_S else after + REST * taken
            now = after
        self._last = now
