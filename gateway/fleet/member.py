"""One launch of one worker as this gateway process uses it."""

from __future__ import annotations

from typing import Final, Protocol

from gateway.candidate import Candidate
from gateway.fleet.breaker import Breaker, BreakerLimits
from gateway.fleet.row import BoardRow, Column
from gateway.messages import WorkerLoad
from gateway.types import CircuitState, WorkerView

CLAIM_SLACK_S: Final = 0.05
"""How much longer the first in line of another process must have waited for a free permit to be left to it."""
CLAIM_STANDS_S: Final = 0.5
"""
A process that has not looked for so long does not take what it claims: it hangs, or is dead. Longer than the event loop
of a busy process may be late, or that process gets nothing as long as there is demand in others, which pass permits on
among their own at once.
"""


class WorkerGauges(Protocol):
    """Where the fleet shows what it holds; `metrics.SlotCounters` has it."""

    def worker_in_flight(self, worker: str, attempts: int) -> None: ...

    def worker_circuit(self, worker: str, state: CircuitState) -> None: ...


class Member:
    """
    Counts and suspicions about one launch. A lease keeps the member it was taken from, so that leaving it never touches
    the counts of a later launch.
    """

    __slots__ = (
        "_gauges",
        "_row",
        "_shown",
        "breaker",
        "busy_since_s",
        "column",
        "in_flight",
        "last_byte_s",
        "replaced",
        "view",
    )

    def __init__(
        self, view: WorkerView, limits: BreakerLimits, gauges: WorkerGauges | None, row: BoardRow | None = None
    ) -> None:
        self.view = view
        self.breaker = Breaker(limits)
        self.in_flight = 0
        """In this process."""
        self.busy_since_s = 0.0
        self.last_byte_s = 0.0
        self.replaced = False
        self.column = _column(row, view)
        self._row = row
        self._gauges = gauges
        self._shown = self.breaker.state
        if gauges is not None:
            gauges.worker_in_flight(view.name, 0)
            gauges.worker_circuit(view.name, self.breaker.state)

    def renew(self, view: WorkerView) -> None:
        """The newest view of the same launch."""
        if view.column != self.view.column:
            if self.column is not None:
                self.column.count(0)
            self.column = _column(self._row, view)
            if self.column is not None:
                self.column.count(self.in_flight)
        self.view = view

    def candidate(self, now_s: float, *, alone: bool) -> Candidate:
        """A copy for one decision. `alone`: there is no other process to ask."""
        view = self.view
        in_flight = self.in_flight
        if not alone and self.column is not None:
            in_flight += self.column.others()
        return Candidate(view.name, view.state, in_flight, self.breaker.admits(now_s))

    def limited_candidate(self, now_s: float, limit: int, since_s: float) -> Candidate:
        """
        The same where `limit` may be in flight: full when they are, or when what is free is another process's turn.

        Among processes it goes by age too, with some slack: permits pass from one stream to the next at once within a
        process, and to another process only at its next look, so they change sides when somebody there is worse off and
        not for the sake of milliseconds.
        """
        view = self.view
        in_flight = self.in_flight
        column = self.column
        if column is not None:
            in_flight += column.others()
        full = in_flight >= limit
        if not full and column is not None:
            oldest_ms = column.oldest_claim(int((now_s - CLAIM_STANDS_S) * 1000))
            full = oldest_ms is not None and oldest_ms < (since_s - CLAIM_SLACK_S) * 1000
        return Candidate(view.name, view.state, in_flight, self.breaker.admits(now_s), full)

    def claim(self, since_s: float | None) -> None:
        """Somebody here waits for this worker since then, None: nobody."""
        if self.column is not None:
            self.column.claim(0 if since_s is None else max(1, int(since_s * 1000)))

    def enter(self, now_s: float) -> int:
        """An attempt begins; returns its epoch for the breaker."""
        if self.in_flight == 0:
            self.busy_since_s = now_s
        self.in_flight += 1
        if self.column is not None:
            self.column.count(self.in_flight)
        epoch = self.breaker.begin(now_s)
        self.show()
        return epoch

    def leave(self) -> None:
        """An attempt that entered has ended."""
        self.in_flight -= 1
        if self.column is not None:
            self.column.count(self.in_flight)
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


def _column(row: BoardRow | None, view: WorkerView) -> Column | None:
    return row.column(view.column) if row is not None and view.column >= 0 else None
