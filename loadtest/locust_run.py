"""
The chat scenario on Locust: closed-loop users, own books, and an end that loses no stream.

Locust sees one event per request, so its totals agree with the books and are not polluted by token events. Import this
only in a process that gevent has patched: see `__main__`.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import gevent
from gevent.event import Event
from locust import User, constant, task
from locust.env import Environment

from loadtest.chat import ChatCall
from loadtest.http_client import Client
from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.target import Target
from loadtest.workload import ChatPlan, chat_bodies

PAUSE_AFTER_FAILURE_S = 0.1


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How many users for how long. `drain_s` is the time streams get to finish after the end."""

    target: Target
    chat: ChatPlan
    users: int
    duration_s: float
    drain_s: float = 60.0
    api_key: str | None = None


class FailedRequestError(Exception):
    """What Locust is told about a request that failed."""


@dataclass(frozen=True, slots=True)
class LocustTotals:
    """Locust's own count, to check the books against."""

    requests: int
    failures: int


def run_chat(plan: RunPlan, ledger: Ledger, progress: Callable[[float], None]) -> LocustTotals:
    """
    Runs the scenario to its end and fills the books; `progress` gets the elapsed seconds about once a second.

    SIGINT or SIGTERM ends the run early: streams in flight still finish.
    """
    started = time.perf_counter()
    environment = Environment(user_classes=[_user_class(plan, ledger, started)], stop_timeout=plan.drain_s)
    runner = environment.create_local_runner()
    gc.collect()
    gc.freeze()  # what exists now never dies: collections during the run look at new objects only
    with _interrupts() as interrupted:
        runner.start(plan.users, spawn_rate=max(plan.users, 1))
        while (left := plan.duration_s - (time.perf_counter() - started)) > 0 and not interrupted.is_set():
            interrupted.wait(min(1.0, left))
            progress(time.perf_counter() - started)
        runner.stop()  # returns when every user has finished its request, or `stop_timeout` has passed
        runner.quit()
    gc.unfreeze()
    return LocustTotals(environment.stats.total.num_requests, environment.stats.total.num_failures)


@contextmanager
def _interrupts() -> Iterator[Event]:
    """
    An event that the first SIGINT or SIGTERM sets; the second ends the process at once, without a report.

    Python's own handler would raise KeyboardInterrupt in whichever greenlet happens to run, in the middle of a request.
    """
    interrupted = Event()

    def on_signal() -> None:
        if interrupted.is_set():
            os._exit(130)
        interrupted.set()

    handlers = [gevent.signal_handler(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield interrupted
    finally:
        for handler in handlers:
            handler.cancel()


def _user_class(plan: RunPlan, ledger: Ledger, started: float) -> type[User]:
    numbers = iter(range(1_000_000_000))

    run_id = f"{time.time_ns():x}"  # request ids must not repeat between runs: servers log them

    class ChatUser(User):
        """Asks, reads the whole answer, asks again."""

        wait_time = constant(0)

        def on_start(self) -> None:
            """A connection and a series of prompts of its own."""
            self.client = Client(plan.target)
            self.number = next(numbers)
            self.bodies = enumerate(chat_bodies(plan.chat, self.number))

        def on_stop(self) -> None:
            """Closes the connection."""
            self.client.close()

        @task
        def chat(self) -> None:
            """One request."""
            count, body = next(self.bodies)
            ledger.schedule()
            call = ChatCall(ledger, started, f"lt-{run_id}-{self.number}-{count}")
            try:
                record = call.perform(self.client, plan.target, body, plan.api_key)
            except gevent.GreenletExit:
                cut = call.interrupted()
                if cut is not None:
                    self.tell(cut)
                raise
            self.tell(record)
            if record.outcome is not Outcome.OK:
                # A closed loop against quick refusals would otherwise become a flood.
                gevent.sleep(PAUSE_AFTER_FAILURE_S)

        def tell(self, record: RequestRecord) -> None:
            """Locust's own count: one event per request that ended."""
            failed = record.outcome is not Outcome.OK
            self.environment.events.request.fire(
                request_type="SSE",
                name="chat",
                response_time=1000 * (record.ended_s - record.scheduled_s),
                response_length=record.token_events,
                exception=FailedRequestError(f"{record.outcome}: {record.detail}") if failed else None,
                context={},
            )

    return ChatUser
