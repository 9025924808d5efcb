"""How long a start may take: longer than planned while it gets on, not longer because it talks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

PATIENCE_S = 120.0
"""Beyond the planned time a start lives on for so long after its last sign of progress."""
MOST_TIMES = 4
"""Whatever the signs, a start does not take so many times the planned time."""
_REMEMBERED = 4096

_BAR = re.compile(r"^(?P<what>[^|]*?)\s*(?P<percent>\d+)%\|[^|]*\|\s*(?P<done>[\d.]+\w*)?")
_CHANGING = re.compile(r"0x[0-9a-f]+|\d+")


class StartDeadline:
    """
    The deadline of one start. Times are CLOCK_MONOTONIC seconds.

    A line is a sign of progress when nothing like it was logged before (numbers do not make it new: a process that
    waits for another says so once a minute), a progress bar's when the bar has moved.
    """

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._began_s = now_s
        self._moved_s = now_s
        self._seen: set[str] = set()
        self._bars: dict[str, tuple[str, str | None]] = {}

    def saw(self, now_s: float, lines: Iterable[str], *, new_phase: bool = False) -> None:
        """The worker logged `lines`, or reached another phase."""
        # No short-circuit: every line has to be remembered.
        if any([self._is_new(line) for line in lines]) or new_phase:  # noqa: C419
            self._moved_s = now_s

    def passed(self, now_s: float) -> bool:
        """Is it over?"""
        took_s = now_s - self._began_s
        if took_s < self._limit_s:
            return False
        return now_s - self._moved_s >= min(PATIENCE_S, self._limit_s) or took_s >= MOST_TIMES * self._limit_s

    def took_s(self, now_s: float) -> float:
        """Seconds since the start."""
        return now_s - self._began_s

    def _is_new(self, line: str) -> bool:
        bar = _BAR.match(line)
        if bar:
            place = (bar["percent"], bar["done"])
            moved = self._bars.get(bar["what"]) != place
            if len(self._bars) < _REMEMBERED:
                self._bars[bar["what"]] = place
            return moved
        form = _CHANGING.sub("0", line)
        if form in self._seen or len(self._seen) >= _REMEMBERED:
            return False
        self._seen.add(form)
        return True
