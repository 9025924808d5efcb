"""The gaps between token events, counted for every event: as cheaply as can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

FLUSH_S: Final = 0.1
"""What was counted is handed on so often, and whenever exchanges that have ended are counted."""


def bucket_of(bounds: list[float], value: float) -> int:
    """The first of `bounds` (ascending) that is not below `value`; their number if there is none."""
    # The standard library's bisection would be told of objects, not of numbers: it costs four times as much, compiled.
    low, high = 0, len(bounds)
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


class TokenGaps:
    """
    The inter-token gaps of one model's streams in one gateway process, on their way into a histogram.

    Args:
        bounds: Inclusive upper bounds of the buckets in seconds, ascending; one more bucket is behind the last.
        add: Told how many gaps fell into each bucket since it was last told, and their sum in seconds.
    """

    __slots__ = ("_add", "_bounds", "_counts", "_due", "_sum")

    def __init__(self, bounds: Iterable[float], add: Callable[[list[int], float], None]) -> None:
        self._bounds: list[float] = list(bounds)
        self._counts: list[int] = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._due = 0.0
        self._add = add

    def observe(self, seconds: float, now: float) -> None:
        """Count one gap that ended at `now` (CLOCK_MONOTONIC)."""
        self._counts[bucket_of(self._bounds, seconds)] += 1
        self._sum += seconds
        if now >= self._due:
            if self._due:
                self.flush()
            self._due = now + FLUSH_S

    def flush(self) -> None:
        """Hand on what was counted."""
        if self._due:
            counts, total = self._counts, self._sum
            self._counts = [0] * len(counts)
            self._sum = 0.0
            self._due = 0.0
            self._add(counts, total)
