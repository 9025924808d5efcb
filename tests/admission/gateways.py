"""
Gateway processes in memory: real fleet views, dispatchers and rooms on a real board, with time that is moved by hand.

Everything runs in one thread, so what the processes do is interleaved exactly as a test says.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.admission import Admission, QueueLimits, Turn
from gateway.errors import Rejected
from gateway.fleet import BoardRow, FleetDispatcher, FleetView, InFlightBoard, WorkerLease
from gateway.protocol.request import RequestView
from gateway.routing import Router
from gateway.types import Endpoint, Family, FleetSnapshot, ModelView, WorkerAddress, WorkerState, WorkerView

MODEL = "llama"
REQUEST = RequestView(
    endpoint=Endpoint.CHAT_COMPLETIONS,
    family=Family.CHAT,
    body=b"{}",
    model=MODEL,
    stream=True,
    include_usage=None,
    n=1,
    max_tokens=None,
)


@dataclass(order=True)
class Call:
    """A call to come (`admission.room.Timer`)."""

    at_s: float
    number: int
    call: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class Clockwork:
    """A clock and the calls that are due by it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._calls: list[Call] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return 1.7e9 + self.now_s

    def call_later(self, seconds: float, call: Callable[[], None]) -> Call:
        heapq.heappush(self._calls, entry := Call(self.now_s + seconds, next(self._numbers), call))
        return entry

    @property
    def pending(self) -> int:
        """Calls to come."""
        return sum(not call.cancelled for call in self._calls)

    def advance(self, seconds: float) -> None:
        """Let time pass, with every call at its time."""
        until_s = self.now_s + seconds
        while self._calls and self._calls[0].at_s <= until_s:
            call = heapq.heappop(self._calls)
            self.now_s = max(self.now_s, call.at_s)
            if not call.cancelled:
                call.call()
        self.now_s = until_s


class Request:
    """One request in a process: served, waiting, or sent away."""

    def __init__(self, process: Process, *, since_s: float | None = None) -> None:
        self.process = process
        self.since_s = process.clock.now_s if since_s is None else since_s
        self.lease: WorkerLease | None = None
        self.refused: Rejected | None = None
        self.no_worker = False
        self.woken = 0
        self._turn: Turn[WorkerLease] | None = None

    @property
    def waiting(self) -> bool:
        return self._turn is not None

    @property
    def worker(self) -> str:
        """Where it is served."""
        assert self.lease is not None, "the request is not being served"
        return self.lease.worker.name

    def ask(self, excluded: frozenset[str] = frozenset(), *, again: bool = False) -> Request:
        """As an exchange does: a lease at once, or a place in line."""
        admission = self.process.admission
        lease = admission.lease(MODEL, REQUEST, excluded, self.since_s)
        if lease is not None:
            self.lease = lease.__enter__()
            return self
        self._turn = admission.queue(MODEL, REQUEST, excluded, self.since_s, self._wake, again=again)
        self._turn.__enter__()
        if self._turn is not None and self._turn.over():  # at once, while this process sleeps
            self.go_on()
        return self

    def _wake(self) -> None:
        self.woken += 1
        if not self.process.asleep and self._turn is not None:
            self.go_on()

    def go_on(self) -> None:
        """What the exchange does when it is woken and gets to run."""
        turn, self._turn = self._turn, None
        assert turn is not None
        try:
            lease = turn.take()
        except Rejected as refused:
            self.refused = refused
            return
        finally:
            turn.__exit__(None, None, None)
        if lease is None:
            self.no_worker = True
        else:
            self.lease = lease.__enter__()

    def leave(self) -> None:
        """The client goes away, whatever the request is doing."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.__exit__(None, None, None)
        self.finish()

    def finish(self) -> None:
        """The attempt is over, if there is one."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.__exit__(None, None, None)

    def fail(self) -> frozenset[str]:
        """The attempt failed by the worker's fault; returns what a retry has to exclude."""
        assert self.lease is not None
        excluded = frozenset({self.worker})
        self.lease.failed("connection_lost", "reset")
        self.finish()
        return excluded


class Process:
    """One gateway process. With `asleep` its exchanges are woken and do not get to run yet."""

    def __init__(self, gateways: Gateways, limits: QueueLimits) -> None:
        self.clock = gateways.clock
        self.number = gateways.board.open_row()
        self.row = BoardRow.attach(os.dup(gateways.board.fd), self.number)
        self.view = FleetView(self.clock, row=self.row)
        self.depths: list[int] = []
        self.dispatcher = FleetDispatcher(
            self.view, Router(), self.clock, lambda failure: None, {MODEL: gateways.limit} if gateways.limit else None
        )
        self.admission = Admission(
            self.dispatcher, self.clock, {MODEL: limits}, gauges=self, call_later=self.clock.call_later
        )
        self.asleep = False

    def queue_depth(self, model: str, waiting: int) -> None:
        self.depths.append(waiting)

    def request(self) -> Request:
        """A request that arrives now."""
        return Request(self).ask()


class Gateways:
    """
    Some processes before the same workers.

    Args:
        limit: Permits per worker; 0: no limit.
    """

    def __init__(self, processes: int = 1, workers: int = 1, limit: int = 2, limits: QueueLimits | None = None) -> None:
        self.clock = Clockwork()
        self.limit = limit
        self.board = InFlightBoard.create()
        self.columns = {f"llama-{index}": self.board.open_column() for index in range(workers)}
        self.processes = [Process(self, limits or QueueLimits()) for _ in range(processes)]
        self._version = itertools.count()
        self.publish()

    def publish(
        self,
        states: dict[str, WorkerState] | None = None,
        *,
        was_ready_at_s: float | None = 990.0,
        draining: bool = False,
        told: int = -1,
    ) -> None:
        """All processes hear of the workers; READY unless said otherwise. `told`: the limit that they hear of."""
        workers = tuple(
            WorkerView(
                name=name,
                model=MODEL,
                state=(states or {}).get(name, WorkerState.READY),
                launch_id="1",
                address=WorkerAddress("h", 1),
                changed_at_s=0.0,
                was_ready_at_s=was_ready_at_s,
                column=column,
            )
            for name, column in self.columns.items()
        )
        snapshot = FleetSnapshot(next(self._version), (ModelView(MODEL, (), 1, None, told),), workers, draining)
        for process in self.processes:
            process.view.apply(snapshot)

    def sums(self) -> list[int]:
        """In flight on each worker, all processes together."""
        return [self.board.column_sum(column) for column in self.columns.values()]

    def kill(self, process: Process) -> None:
        """kill -9, and the supervisor has noticed."""
        self.processes.remove(process)
        process.row.close()
        self.board.zero_row(process.number)

    def assert_idle(self) -> None:
        """Invariant 8: nothing in flight, nobody waiting, no timer."""
        assert 0 == self.board.total()
        assert [0] * len(self.processes) == [process.admission.waiting for process in self.processes]
        assert [0] * len(self.processes) == [process.view.in_flight for process in self.processes]
        assert 0 == self.clock.pending
        assert all(not process.depths or process.depths[-1] == 0 for process in self.processes)
        for process in self.processes:
            for name in self.columns:
                member = process.view.member(name)
                assert member is not None
                assert member.column is not None
                assert member.column.oldest_claim(0) is None, "no claim is left on the board"

    def close(self) -> None:
        """Let go of the memory."""
        for process in self.processes:
            process.row.close()
        self.board.close()


def waiting(requests: Sequence[Request]) -> list[Request]:
    """Those that are in line."""
    return [request for request in requests if request.waiting]


def served(requests: Sequence[Request]) -> list[Request]:
    """Those that have a lease."""
    return [request for request in requests if request.lease is not None]
