"""
Is a serving worker alive, slow, or hung? Pure judgements on what was observed.

`/health` says only "not known dead": a stopped engine answers 200 for ever, and a busy one may miss its probes. So
missed probes earn patience, and a hang is told by progress: requests in flight, no byte, no engine step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.config.settings import Watch

LOAD_STALE_S = 5.0
"""Without load reports for so long nobody is taken to use the worker (they come once a second)."""


class Health(StrEnum):
    """What the probes say."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    """Misses, fewer than the patience: nothing changes yet."""
    SICK = "sick"
    """Out of rotation, not yet condemned."""
    LOST = "lost"
    """To be killed and started again."""


class HealthPatience:
    """Counts probe misses in a row."""

    def __init__(self, watch: Watch) -> None:
        self._patience = watch.probe_misses
        self._misses = 0
        self._deaths = 0

    def answered(self) -> Health:
        """A probe succeeded."""
        self._misses = self._deaths = 0
        return Health.GOOD

    def missed(self, *, dead: bool, progressing: bool) -> Health:
        """
        A probe failed.

        Args:
            dead: The worker itself said that its engine is dead.
            progressing: Its streams moved lately: it is overloaded, and killing it would make that worse.
        """
        self._misses += 1
        self._deaths = self._deaths + 1 if dead else 0
        if self._deaths >= self._patience or (self._misses >= 2 * self._patience and not progressing):
            return Health.LOST
        return Health.SICK if self._misses >= self._patience or dead else Health.DOUBTFUL


class Progress(StrEnum):
    """What to do about a worker's progress."""

    FINE = "fine"
    COUNT = "count"
    """Silent for a while: read the engine's step counter."""
    TEST = "test"
    """Silent too long and no step: send a request of one token."""


@dataclass(slots=True)
class _Load:
    at_s: float
    in_flight: int
    silent_since_s: float


class HangWatch:
    """The progress of one launch. All times are CLOCK_MONOTONIC seconds."""

    def __init__(self, watch: Watch) -> None:
        self._idle_s = watch.hang_idle_s
        self._load: _Load | None = None
        self._busy_since_s = 0.0
        self._count: float | None = None
        self._moved_at_s = float("-inf")

    def load(self, now_s: float, in_flight: int, silent_s: float | None) -> None:
        """A load report; `silent_s` since the last byte of any stream, None when there was none yet."""
        if self._load is None or self._load.in_flight == 0:
            self._busy_since_s = now_s
        # A silence from before the worker had work says nothing.
        since_s = self._busy_since_s if silent_s is None else max(self._busy_since_s, now_s - silent_s)
        self._load = _Load(now_s, in_flight, since_s)

    def counted(self, now_s: float, iterations: float | None) -> None:
        """The engine's step counter; None when it could not be read, which is no progress."""
        if iterations is None:
            return
        if self._count is not None and iterations != self._count:
            self._moved_at_s = now_s
        self._count = iterations

    def proved(self, now_s: float) -> None:
        """The worker answered a request: it moves."""
        self._moved_at_s = now_s

    def in_flight(self, now_s: float) -> int:
        """Requests the worker has, 0 once the reports are stale."""
        if self._load is None or now_s - self._load.at_s > LOAD_STALE_S:
            return 0
        return self._load.in_flight

    def reported_at_s(self) -> float | None:
        """When the last load report came."""
        return self._load.at_s if self._load else None

    def progressing(self, now_s: float) -> bool:
        """Requests are in flight and one of them moved within the idle limit."""
        return self.in_flight(now_s) > 0 and now_s - self._last_sign_s() < self._idle_s

    def judge(self, now_s: float) -> Progress:
        """
        What to do now.

        The counter is read from half of the idle limit on, so that at the limit there is something to compare with.
        """
        if self.in_flight(now_s) == 0:
            return Progress.FINE
        idle_s = now_s - self._last_sign_s()
        if idle_s >= self._idle_s:
            return Progress.TEST
        return Progress.COUNT if idle_s >= self._idle_s / 2 else Progress.FINE

    def patience_s(self, now_s: float) -> float:
        """Seconds until silence is too long; infinite while nobody uses the worker."""
        if self.in_flight(now_s) == 0:
            return float("inf")
        return max(0.0, self._idle_s - (now_s - self._last_sign_s()))

    def _last_sign_s(self) -> float:
        silent_since_s = self._load.silent_since_s if self._load else float("-inf")
        return max(silent_since_s, self._moved_at_s)
