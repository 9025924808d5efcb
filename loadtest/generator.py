"""
Sending, in one process: closed-loop users, or arrivals dispatched at their absolute times. Runs under gevent.

The open loop never waits for the server: each arrival gets a greenlet at its moment. What would exceed the in-flight
limit is settled as unsent with that reason, so that the socket count is bounded and nothing is lost from the books.
"""

from __future__ import annotations

import itertools
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import gevent
from gevent.event import Event
from gevent.pool import Group

from loadtest.arrivals import arrival_times, share
from loadtest.call import Call
from loadtest.http_client import Client
from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome, UnsentReason
from loadtest.plan import RunPlan
from loadtest.process_gauges import ProcessGauges
from loadtest.process_report import ProcessReport
from loadtest.scenarios.base import Request, Session, session_rng
from loadtest.stalls import StallGuard

PAUSE_AFTER_FAILURE_S = 0.1
"""Of a closed-loop user: against quick refusals it would otherwise become a flood."""
_AHEAD = 64
"""Sessions prepared before they are due, so that building a long prompt makes nothing late."""


@dataclass(slots=True)
class _Visit:
    """A session with its first request."""

    number: int
    session: Session
    request: Request


class Generator:
    """
    The load of one process of a run. `told` is called with every record of a request that was sent.

    `started` (perf_counter) must be set before anything runs; `end` stops new requests, those in flight go on. An error
    of the generator's own ends everything and is kept in `broken`: its books would be wrong.
    """

    def __init__(self, plan: RunPlan, process: int, guard: StallGuard, told: Callable[[RequestRecord], None]) -> None:
        self._plan, self._process, self._guard, self._told = plan, process, guard, told
        self._scenario = plan.make_scenario()
        self._numbers = itertools.count(process, plan.processes)
        self._limit = plan.in_flight_limit(process)
        self._tls = ssl.create_default_context() if plan.target.tls else None
        self._active: set[Call] = set()
        self._idle: list[Client] = []
        self._ending = Event()
        self._gauges = ProcessGauges()
        self._reported_records = 0
        self.started = 0.0
        self.users = 0
        self.broken: BaseException | None = None
        self.ledger = Ledger()

    def end(self) -> None:
        """No new requests from now on."""
        self._ending.set()

    def breaks(self, error: BaseException) -> None:
        """Something of our own went wrong."""
        self.broken = self.broken or error
        self._ending.set()

    @property
    def ended(self) -> bool:
        """Whether the time is over, or `end` was called."""
        return self._ending.is_set() or time.perf_counter() >= self.started + self._plan.duration_s

    # -- closed loop ------------------------------------------------------------------------------------------------

    def use(self) -> None:
        """One user, until the end: sessions one after another on a connection of its own."""
        client = self._new_client()
        self.users += 1
        try:
            self._ending.wait(max(0.0, self.started - time.perf_counter()))
            while not self.ended:
                visit = self._visit(next(self._numbers))
                if visit is not None:
                    self._play(visit, time.perf_counter(), lambda: client, pause=True)
        finally:
            self.users -= 1
            client.close()

    # -- open loop --------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Starts every arrival at its time and returns when the last of their sessions is over."""
        sessions = Group()
        try:
            for visit, due in self._due_visits():
                sessions.spawn(self._arrive, visit, due).link_exception(
                    lambda greenlet: self.breaks(greenlet.exception)
                )
            sessions.join()
        except gevent.GreenletExit:
            sessions.kill()
            raise
        finally:
            while self._idle:
                self._idle.pop().close()

    def _due_visits(self) -> Iterator[tuple[_Visit, float]]:
        """Visits at their due moments; between them the next ones are prepared."""
        plan = self._plan
        assert plan.arrivals is not None
        times = share(arrival_times(plan.arrivals, plan.duration_s, plan.seed), self._process, plan.processes)
        prepared: deque[tuple[_Visit, float]] = deque()
        exhausted = False
        while True:
            while not exhausted and len(prepared) < _AHEAD and not (prepared and self._is_soon(prepared[0][1])):
                entry = next(times, None)
                if entry is None:
                    exhausted = True
                elif (visit := self._visit(entry[0])) is not None:
                    prepared.append((visit, self.started + entry[1]))
                gevent.sleep(0)  # streams are read between two prompts
            if not prepared:
                return
            visit, due = prepared[0]
            if self._ending.wait(max(0.0, due - time.perf_counter())):
                return
            prepared.popleft()
            yield visit, due

    @staticmethod
    def _is_soon(due: float) -> bool:
        return due - time.perf_counter() < 0.002

    def _arrive(self, visit: _Visit, due: float) -> None:
        with self._pooled_client() as client:
            self._play(visit, due, client, pause=False)

    @contextmanager
    def _pooled_client(self) -> Iterator[Callable[[], Client]]:
        """The connection that was used last, so that as few as possible are open; held for a whole session."""
        held: list[Client] = []

        def client() -> Client:
            if not held:
                held.append(self._idle.pop() if self._idle else self._new_client())
            return held[0]

        try:
            yield client
        finally:
            for one in held:
                if one.connected:
                    self._idle.append(one)

    # -- both -------------------------------------------------------------------------------------------------------

    def _new_client(self) -> Client:
        plan = self._plan
        return Client(plan.target, connect_timeout_s=plan.connect_timeout_s, guard=self._guard, tls=self._tls)

    def _visit(self, number: int) -> _Visit | None:
        session = self._scenario.session(session_rng(self._plan.seed, number), number)
        request = next(session, None)
        return None if request is None else _Visit(number, session, request)

    def _play(self, visit: _Visit, due: float, client: Callable[[], Client], *, pause: bool) -> None:
        """One session; its first request is due at `due`, each later one when the answer before it is there."""
        request: Request | None = visit.request
        turns = itertools.count()
        while request is not None:
            request_id = f"lt-{self._plan.run_id}-{visit.number}-{next(turns)}"
            call = Call(request, self.ledger, self.started, due, request_id, visit.number)
            record = self._perform(call, client)
            if pause and record.outcome not in (Outcome.OK, Outcome.CANCELLED):
                self._ending.wait(PAUSE_AFTER_FAILURE_S)
            if self.ended:
                visit.session.close()
                return
            try:
                request = visit.session.send(call.answer(record))
            except StopIteration:
                return
            due = time.perf_counter() + request.after_s
            if request.after_s and self._ending.wait(request.after_s):
                visit.session.close()
                return

    def _perform(self, call: Call, client: Callable[[], Client]) -> RequestRecord:
        self.ledger.schedule()
        if len(self._active) >= self._limit:
            return call.finish(Outcome.UNSENT, UnsentReason.IN_FLIGHT_LIMIT)
        self._active.add(call)
        connection = client()
        try:
            record = call.perform(connection, self._plan.target, self._plan.api_key)
        except gevent.GreenletExit:
            record = call.interrupted()
            if record.outcome is not Outcome.UNSENT:
                self._told(record)
            raise
        finally:
            self._active.discard(call)
        if self._plan.connections == "new":
            connection.close()
        self._told(record)
        return record

    # -- telling ----------------------------------------------------------------------------------------------------

    def report(self, *, final: bool = False, locust_requests: int = 0, locust_failures: int = 0) -> ProcessReport:
        """What happened since the last report."""
        records = self.ledger.records[self._reported_records :]
        self._reported_records = len(self.ledger.records)
        running = [call.timer.token_events for call in self._active]
        sent = sum(call.exchange.sent for call in self._active)
        since = self._gauges.reported_at
        firsts = [
            *((call.timer.first_at, call.exchange.sent_at) for call in self._active),
            *((_at(record.first_token_s, self.started), _at(record.sent_s, self.started)) for record in records),
        ]
        lags = [
            *(
                call.exchange.sent_at - call.scheduled_at - (call.exchange.connect_s or 0.0)
                for call in self._active
                if call.exchange.sent and call.exchange.sent_at >= since
            ),
            *(
                record.send_lag_s
                for record in records
                if record.send_lag_s is not None and (record.sent_s or 0.0) + self.started >= since
            ),
        ]
        token_events = self.ledger.token_events + sum(running)
        measured = self._gauges.measure(token_events)
        return ProcessReport(
            process=self._process,
            scheduled=self.ledger.scheduled,
            sent=sent + self.ledger.sent,
            token_events=token_events,
            output_tokens=self.ledger.output_tokens + sum(running),
            users=self.users,
            ttfts_s=[first - at for first, at in firsts if first is not None and at is not None and first >= since],
            send_lag_max_s=max(lags, default=0.0),
            loop_lags_s=measured.loop_lags_s,
            cpu_s=measured.cpu_s,
            cpu_share=measured.cpu_share,
            events_per_s=measured.events_per_s,
            records=records,
            final=final,
            locust_requests=locust_requests,
            locust_failures=locust_failures,
        )

    def watch_loop(self) -> None:
        """Measures processor time and how late timers are, from now on; runs until killed."""
        self._gauges.restart()
        self._gauges.watch_loop(gevent.sleep)


def _at(moment_s: float | None, started: float) -> float | None:
    return None if moment_s is None else moment_s + started
