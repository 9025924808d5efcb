"""How fast a queue drains: permits given back per second, of late."""

from __future__ import annotations

import math

MEMORY_S = 10.0
"""What happened so long ago weighs a third of what happens now: the rate of the last seconds, not an hour's mean."""


class DrainRate:
    """
    An exponentially decaying count over its own window.

    rate = Σ exp(−age / MEMORY_S) / (MEMORY_S · (1 − exp(−observed / MEMORY_S))): the divisor is what a rate of one per
    second would have gathered in the time observed so far, so that the first seconds are not taken for a slow queue.
    """

    __slots__ = ("_at_s", "_began_s", "_weight")

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._at_s = 0.0
        self._weight = 0.0

    def freed(self, now_s: float) -> None:
        """A permit was given back."""
        if self._began_s is None:
            self._began_s = now_s
        else:
            self._weight *= math.exp((self._at_s - now_s) / MEMORY_S)
        self._weight += 1.0
        self._at_s = now_s

    def per_second(self, now_s: float) -> float:
        """The rate, 0.0 as long as nothing is known."""
        if self._began_s is None:
            return 0.0
        # The first one counts as if it had taken a second: a single event has no rate.
        observed_s = max(1.0, now_s - self._began_s)
        weight = self._weight * math.exp((self._at_s - now_s) / MEMORY_S)
        return weight / (MEMORY_S * -math.expm1(-observed_s / MEMORY_S))

    def seconds_for(self, permits: int, now_s: float) -> float | None:
        """How long so many take to come free; None when the rate is not known, or next to nothing."""
        rate = self.per_second(now_s)
        return permits / rate if rate > 1e-3 else None
