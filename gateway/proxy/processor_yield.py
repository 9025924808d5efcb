"""
When a gateway process lets others have its processor, in the midst of a burst of events.

Events of many streams come in bursts: an engine writes one for each of its sequences after every step. Where the kernel
runs the client on the processor that the gateway runs on (the usual thing where both share a machine with few), every
client waits until the whole burst is through. A gateway process that offers its processor meanwhile lets those read
whose events are written already. Where nobody of its control group waits for this processor, an offer is a system call
that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

TURN_S: Final = 60e-6
"""An offer is made after so long a turn: some five events."""
PAUSE_S: Final = 100e-6
"""An event that comes so much later than the one before begins a turn: the process has slept in between."""
LONG_S: Final = 500e-6
"""Clients that read what was written for them need less; whoever takes longer is computing, and would take a whole time
slice every time."""
REST: Final = 100
"""After an offer that was held for long, none is made for so many times as long: such takers get at most a hundredth of
the time."""
LONGEST_REST_S: Final = 1.0
"""A process that was stopped in the midst of an offer, or its machine, has not met somebody who computes."""


class ProcessorYield:
    """
    One gateway process's turns on its processor; told of every read of a stream that has been dealt with.

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
        """A read has been dealt with, and what could be passed on is written; `now` is about then."""
        if now - self._last > self._pause_s:
            if now > self._began:  # else no offers are made for a while
                self._began = now
        elif now - self._began > self._turn_s:
            before = self._now()
            self._give_way()
            now = self._now()
            held = now - before
            self._began = now if held < LONG_S else now + min(REST * held, LONGEST_REST_S)
        self._last = now
