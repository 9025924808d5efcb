"""An error that happens a thousand times is told a few times and then counted. Pure, by a clock."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from gateway.clock import Clock

BURST = 10
"""So many of the same are told within one window."""
WINDOW_S = 60.0
MAX_KEYS = 256
"""Different errors that are told apart at a time; whatever comes on top of them shares one count."""
_THE_REST = "the rest"


@dataclass(slots=True)
class _Window:
    began_s: float
    told: int = 0
    kept_back: int = 0


class Repeats:
    """
    How often each error was told in its window. The key says which errors are the same.

    Any thread may ask: libraries log from threads of their own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[Hashable, _Window] = {}

    def tells(self, key: Hashable) -> bool:
        """Whether to tell this one; otherwise it was counted."""
        now_s = self._clock.monotonic()
        if key not in self._windows and len(self._windows) >= MAX_KEYS:
            key = _THE_REST
        window = self._windows.setdefault(key, _Window(now_s))
        if window.told < BURST:
            window.told += 1
            return True
        window.kept_back += 1
        return False

    def over(self, *, all_of_them: bool = False) -> list[tuple[Hashable, int]]:
        """Forget the windows that have passed; those of which something was kept back, and how many."""
        now_s = self._clock.monotonic()
        gone = [
            (key, window)
            for key, window in list(self._windows.items())
            if all_of_them or now_s - window.began_s >= WINDOW_S
        ]
        # Whoever takes a window out tells of it; another thread may have found the same one.
        mine = [(key, window) for key, window in gone if self._windows.pop(key, None) is window]
        return [(key, window.kept_back) for key, window in mine if window.kept_back]
