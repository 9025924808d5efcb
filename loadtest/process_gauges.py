"""What a load process measures about itself: processor time, lateness of its event loop, events per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

LOOP_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Measured:
    """Since the measurement before."""

    cpu_s: float
    """Processor seconds since this process began to measure."""
    cpu_share: float
    events_per_s: float
    loop_lags_s: list[float]


class ProcessGauges:
    """Readings between two reports."""

    def __init__(self) -> None:
        self.reported_at = time.perf_counter()
        self._cpu_s = self._cpu_began_s = time.process_time()
        self._events = 0
        self._lags: list[float] = []

    def restart(self) -> None:
        """What came before was preparation."""
        self._cpu_s = self._cpu_began_s = time.process_time()

    def watch_loop(self, sleep: Callable[[float], object]) -> NoReturn:
        """Notes by how much each short sleep was too long."""
        while True:
            due = time.perf_counter() + LOOP_PAUSE_S
            sleep(LOOP_PAUSE_S)
            self._lags.append(max(0.0, time.perf_counter() - due))

    def measure(self, events: int) -> Measured:
        """Closes the interval. `events` is the total so far."""
        now, cpu_s = time.perf_counter(), time.process_time()
        seconds = max(now - self.reported_at, 1e-6)
        # A moment at the end is too short to have a rate: what it holds would look like a peak.
        rated = seconds if seconds >= 0.25 else float("inf")
        measured = Measured(
            cpu_s - self._cpu_began_s,
            (cpu_s - self._cpu_s) / rated,
            (events - self._events) / rated,
            self._lags,
        )
        self.reported_at, self._cpu_s, self._events, self._lags = now, cpu_s, events, []
        return measured
