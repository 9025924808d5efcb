"""
The circuit breaker of one worker, private to one gateway process: a state machine that is told the time.

    CLOSED ──`threshold` failures in a row──▶ OPEN ──pause over, one attempt begins──▶ HALF_OPEN
      ▲                                        ▲                                           │
      │                                        └──────────── probe failed, pause doubles ──┤
      └───────────────────────────────────────────────────── probe succeeded ──────────────┘

Only a worker's own faults come here: a client's fault or departure is neutral. Every attempt belongs to the epoch in
which it began, and a verdict on an attempt of an earlier epoch is ignored: a stream that began before the circuit
opened says nothing about the worker now. A new launch of the worker gets a new breaker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.types import CircuitState

# Looking up a member of an enumeration is a call of a function; these are used for every request.
_CLOSED: Final = CircuitState.CLOSED


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """
    When a circuit opens and for how long.

    A probe that is still running after `probe_s` no longer keeps others away: it may be a stream of minutes.
    """

    threshold: int = 3
    pause_s: float = 1.0
    longest_pause_s: float = 30.0
    probe_s: float = 5.0


class Breaker:
    """Told of attempts and verdicts, says whether another attempt is wise."""

    __slots__ = ("_epoch", "_failures", "_limits", "_pause_s", "_until_s", "state")

    def __init__(self, limits: BreakerLimits) -> None:
        self.state = _CLOSED
        self._limits = limits
        self._epoch = 0
        self._failures = 0
        self._pause_s = limits.pause_s
        self._until_s = 0.0
        """OPEN: end of the pause. HALF_OPEN: when the next probe may go."""

    def admits(self, now_s: float) -> bool:
        """Whether an attempt may begin now."""
        return self.state is _CLOSED or now_s >= self._until_s

    def begin(self, now_s: float) -> int:
        """An attempt begins (even against advice); returns its epoch, for the verdict."""
        if self.state is not _CLOSED and now_s >= self._until_s:
            self._enter(CircuitState.HALF_OPEN, now_s + self._limits.probe_s)
        return self._epoch

    def succeeded(self, epoch: int) -> None:
        """The attempt got what a healthy worker gives."""
        if epoch != self._epoch:
            return
        self._failures = 0
        if self.state is not _CLOSED:
            self._pause_s = self._limits.pause_s
            self._enter(_CLOSED, 0.0)

    def failed(self, epoch: int, now_s: float) -> None:
        """The attempt failed by the worker's fault."""
        if epoch != self._epoch or self.state is CircuitState.OPEN:
            return
        self._failures += 1
        if self.state is CircuitState.HALF_OPEN:
            self._pause_s = min(self._pause_s * 2, self._limits.longest_pause_s)
            self._enter(CircuitState.OPEN, now_s + self._pause_s)
        elif self._failures >= self._limits.threshold:
            self._enter(CircuitState.OPEN, now_s + self._pause_s)

    def neutral(self, epoch: int, now_s: float) -> None:
        """The attempt ended without telling anything about the worker; a probe's place is free again at once."""
        if epoch == self._epoch and self.state is CircuitState.HALF_OPEN:
            self._until_s = now_s

    def _enter(self, state: CircuitState, until_s: float) -> None:
        self.state = state
        self._until_s = until_s
        self._failures = 0
        self._epoch += 1
