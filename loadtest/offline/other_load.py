"""What else the machine does while a pass is timed: on a shared machine the figures are mostly about that."""

from __future__ import annotations

import contextlib
import os
import time

import psutil


class OtherLoad:
    """Processor time that this process and its children did not use, from construction on."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_s(), _own_s()

    def share(self) -> float | None:
        """Of all processors' time since then; None where the system does not tell."""
        if not hasattr(os, "sched_getaffinity"):
            return None
        elapsed = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        others = (_busy_s() - self._busy) - (_own_s() - self._own)
        return min(1.0, max(0.0, others / elapsed)) if elapsed > 0 else None


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0))


def _own_s() -> float:
    total = 0.0
    process = psutil.Process()
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total
