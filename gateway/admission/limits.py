"""What is configured about waiting, for one model in one gateway process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """
    Args:
        max_queued: How many may wait in this process; 0: nobody waits. Requests that are tried again are let in beyond
            it: they have been admitted once, and there are never more of them than permits.
        timeout_s: How long one may wait for a permit.
        coming_back_s: How long one may wait when no worker is READY but one is on its way.
    """

    max_queued: int = 1000
    timeout_s: float = 60.0
    coming_back_s: float = 120.0


def share(total: int, processes: int) -> int:
    """One process's part of a bound for all of them, rounded up, so that none has nothing."""
    return -(-total // processes)
