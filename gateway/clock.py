"""Time, as a dependency: everything that decides by time takes a `Clock`, so that tests move it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time for decisions, wall time for what people read."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back; the same origin in all processes of one host."""
        ...

    def unix(self) -> float:
        """Seconds since 1970-01-01 UTC; may jump."""
        ...


class SystemClock:
    """The machine's own clocks (CLOCK_MONOTONIC and CLOCK_REALTIME)."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()
