"""The order in which requests wait, pure."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Place:
    """
    One request's place.

    Args:
        since_s: When the request was complete (CLOCK_MONOTONIC), the same when it is tried again after a failure.
        excluded: Workers it must not go to, because it was tried there before.
        again: It was admitted before.
        expires_s: When it has waited too long.
    """

    since_s: float
    excluded: frozenset[str] = frozenset()
    again: bool = False
    expires_s: float = 0.0


class Line:
    """
    First come, first served. A request that is tried again arrived before everybody who still waits for a first time:
    it stands ahead of them, in order of arrival among its like. So nobody is overtaken by anyone who came later.
    """

    def __init__(self) -> None:
        self._again: list[Place] = []
        # Not a plain dict, whose front gets slow to find when places are taken from it again and again.
        self._waiting: OrderedDict[int, Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._again) + len(self._waiting)

    def __iter__(self) -> Iterator[Place]:
        yield from self._again
        yield from self._waiting.values()

    @property
    def newcomers(self) -> int:
        """How many wait for a first time."""
        return len(self._waiting)

    @property
    def retries(self) -> list[Place]:
        """Those that were admitted before."""
        return self._again.copy()

    def join(self, place: Place) -> None:
        """Stand in line."""
        if place.again:
            insort(self._again, place, key=_since)
        else:
            self._waiting[id(place)] = place

    def leave(self, place: Place) -> None:
        """Give up, or have got what was waited for. Idempotent."""
        if self._waiting.pop(id(place), None) is None and place in self._again:
            self._again.remove(place)

    def firsts(self) -> list[Place]:
        """
        Whoever may be served next: the first in line, and where that one must not go to some workers, the first behind
        it that may, and so on to the first that may go anywhere.
        """
        firsts: list[Place] = []
        seen: set[frozenset[str]] = set()
        for place in self:
            if place.excluded not in seen:
                firsts.append(place)
                seen.add(place.excluded)
            if not place.excluded:
                break
        return firsts


def _since(place: Place) -> float:
    return place.since_s
