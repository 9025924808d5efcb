"""One launch of one worker as this gateway process uses it."""

from __future__ import annotations

from typing import Protocol

from gateway.fleet.breaker import Breaker, BreakerLimits
from gateway.messages import WorkerLoad
from gateway.types import Candidate, CircuitState, WorkerView


class WorkerGauges(Protocol):
    """Where the fleet shows what it holds; `metrics.SlotCounters` has it."""

    def worker_in_flight(self, worker: str, attempts: int) -> None: ...

    def worker_circuit(self, worker: str, state: CircuitState) -> None: ...


class Member:
    """
    Counts and suspicions about one launch. A lease keeps the member it was taken from, so that leaving it never touches
    the counts of a later launch.
    """

    __slots__ = ("_gauges", "_shown", "breaker", "busy_since_s", "in_flight", "last_byte_s", "replaced", "view")

    def __init__(self, view: WorkerView, limits: BreakerLimits, gauges: WorkerGauges | None) -> None:
        self.view = view
        self.breaker = Breaker(limits)
        self.in_flight = 0
        self.busy_since_s = 0.0
        self.last_byte_s = 0.0
        self.replaced = False
        self._gauges = gauges
        self._shown = self.breaker.state
        if gauges is not None:
            gauges.worker_in_flight(view.name, 0)
            gauges.worker_circuit(view.name, self.breaker.state)

    def candidate(self, now_s: float) -> Candidate:
        """A frozen copy for one decision."""
        view = self.view
        return Candidate(view.name, view.state, self.in_flight, self.breaker.admits(now_s))

    def enter(self, now_s: float) -> int:
        """An attempt begins; returns its epoch for the breaker."""
        if self.in_flight == 0:
            self.busy_since_s = now_s
        self.in_flight += 1
        epoch = self.breaker.begin(now_s)
        self.show()
        return epoch

    def leave(self) -> None:
        """An attempt that entered has ended."""
        self.in_flight -= 1
        self.show()

    def load(self, now_s: float) -> WorkerLoad:
        """For the supervisor. Silence is counted from the start of work when no byte has come since."""
        silent_s = None
        if self.in_flight:
            silent_s = max(0.0, now_s - max(self.last_byte_s, self.busy_since_s))
        return WorkerLoad(
            worker=self.view.name, launch_id=self.view.launch_id, in_flight=self.in_flight, silent_s=silent_s
        )

    def show(self) -> None:
        """Bring the gauges up to date, unless they belong to a later launch."""
        if self._gauges is None or self.replaced:
            return
        self._gauges.worker_in_flight(self.view.name, self.in_flight)
        if self.breaker.state is not self._shown:
            self._shown = self.breaker.state
            self._gauges.worker_circuit(self.view.name, self._shown)
