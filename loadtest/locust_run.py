"""
A run on Locust: in this process, or as master of worker processes on loopback. Needs gevent's patch: see `__main__`.

The end loses no stream. Locust's own end would: it kills what is in flight, and its master waits half a second for the
last reports. So the load is told to end first, what is in flight finishes, the last report of every process is waited
for, and only then Locust stops.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import gevent
import msgspec
from gevent.event import Event
from gevent.pool import Group
from locust import runners
from locust.env import Environment
from locust.runners import Runner

from loadtest.generator import Generator
from loadtest.locust_users import teller, user_class
from loadtest.merging import MergedRun
from loadtest.plan import RunPlan
from loadtest.process_report import ProcessReport
from loadtest.result import TimelineSample
from loadtest.stalls import StallGuard
from loadtest.worker_messages import BEGIN, END, LISTENING, REPORT

SAMPLE_PERIOD_S = 1.0
_LEAD_S = 0.3
"""Between telling the processes and the start of the schedule."""
_TIDY_PERIOD_S = 20.0
_WORKER_START_S = 60.0
_LAST_REPORT_S = 30.0
_SILENCE_BEATS = 60

OnSample = Callable[[TimelineSample], None]


class WorkerProcessError(Exception):
    """A load process did not start, or ended before the run did."""


def run_load(plan: RunPlan, run: MergedRun, on_sample: OnSample) -> float:
    """
    Runs the plan to its end and fills the books; `on_sample` is called about once a second.

    Returns the start of the schedule as perf_counter seconds. SIGINT or SIGTERM ends the run early: streams in flight
    still finish.

    Raises:
        WorkerProcessError: a load process was lost; the books would be wrong without it.
    """
    with _interrupts() as interrupted:
        carry = _run_here if plan.processes == 1 else _run_workers
        return carry(plan, run, on_sample, interrupted)


def _run_here(plan: RunPlan, run: MergedRun, on_sample: OnSample, interrupted: Event) -> float:
    with StallGuard(plan.read_timeout_s) as guard:
        environment = Environment(stop_timeout=plan.drain_s)
        generator = Generator(plan, 0, guard, teller(environment))
        environment.user_classes = [user_class(plan, generator)]
        runner = environment.create_local_runner()
        loop_watch = gevent.spawn(generator.watch_loop)
        with resting_collector():
            generator.started = time.perf_counter() + _LEAD_S
            runner.start(plan.locust_users(), spawn_rate=plan.locust_users())

            def tick() -> None:
                if generator.broken is not None:
                    raise generator.broken
                run.take(generator.report())
                on_sample(run.sample(time.perf_counter() - generator.started, closed_loop=plan.users is not None))

            _until_end(plan, generator.started, interrupted, tick)
            generator.end()
            finish(runner, plan.drain_s, tick)
            total = environment.stats.total
            run.take(
                generator.report(final=True, locust_requests=total.num_requests, locust_failures=total.num_failures)
            )
            on_sample(run.sample(time.perf_counter() - generator.started, closed_loop=plan.users is not None))
        loop_watch.kill()
        runner.quit()
        return generator.started


def _run_workers(plan: RunPlan, run: MergedRun, on_sample: OnSample, interrupted: Event) -> float:
    # Locust takes a process that was silent for three seconds for lost, and stops the others. Here a process that has
    # no processor time makes a run invalid, and one that has ended is noticed by its exit code.
    runners.HEARTBEAT_LIVENESS = _SILENCE_BEATS
    environment = Environment(user_classes=[user_class(plan, None)], stop_timeout=plan.drain_s)
    runner = environment.create_master_runner("127.0.0.1", 0)

    def on_report(environment: Environment, msg: Any, **_: Any) -> None:
        run.take(ProcessReport.from_bytes(msg.data["report"]))

    listening: list[str] = []

    def on_listening(environment: Environment, msg: Any, **_: Any) -> None:
        listening.append(msg.node_id)

    runner.register_message(REPORT, on_report)
    runner.register_message(LISTENING, on_listening)
    with _worker_processes(plan, runner.server.port) as workers:
        try:
            _await(lambda: len(listening) == plan.processes, workers, _WORKER_START_S, "connect")
            started = time.perf_counter() + _LEAD_S
            runner.send_message(BEGIN, {"started": started})
            gevent.spawn(runner.start, plan.locust_users(), plan.locust_users())

            def tick() -> None:
                _check_alive(workers, run)
                on_sample(run.sample(time.perf_counter() - started, closed_loop=plan.users is not None))

            _until_end(plan, started, interrupted, tick)
            runner.send_message(END, {})
            give_up = time.perf_counter() + plan.drain_s + _LAST_REPORT_S
            while len(run.finished) < plan.processes and time.perf_counter() < give_up:
                gevent.sleep(0.05)
                if time.perf_counter() - started - run.timeline[-1].at_s >= SAMPLE_PERIOD_S:
                    tick()
            if len(run.finished) < plan.processes:
                raise WorkerProcessError(f"expected {plan.processes} last reports, found {len(run.finished)}")
            on_sample(run.sample(time.perf_counter() - started, closed_loop=plan.users is not None))
            total = environment.stats.total
            _await(lambda: total.num_requests >= run.locust_requests, workers, _LAST_REPORT_S, "report to Locust")
            run.locust_requests, run.locust_failures = total.num_requests, total.num_failures
            return started
        finally:
            runner.quit()


def _until_end(plan: RunPlan, started: float, interrupted: Event, tick: Callable[[], None]) -> None:
    """Ticks once a second until the time is over or somebody interrupts."""
    end, due = started + plan.duration_s, started
    while (now := time.perf_counter()) < end and not interrupted.is_set():
        due = max(due + SAMPLE_PERIOD_S, now)
        interrupted.wait(max(0.0, min(due, end) - now))
        tick()


def finish(runner: Runner, drain_s: float, tick: Callable[[], None]) -> None:
    """
    Waits until every user has left, at most `drain_s`, and then stops Locust, which kills those who are left.

    Locust is not asked to wait itself: its stop blocks for twenty milliseconds, which streams in flight would show.
    """
    users: Group = runner.user_greenlets
    give_up = time.perf_counter() + drain_s
    while users and (left := give_up - time.perf_counter()) > 0:
        users.join(timeout=min(SAMPLE_PERIOD_S, left))
        tick()
    runner.environment.stop_timeout = 0
    logger = logging.getLogger(runners.__name__)
    logger.addFilter(_of_users_that_have_left)
    try:
        runner.stop()
    finally:
        logger.removeFilter(_of_users_that_have_left)
    tick()


def _of_users_that_have_left(record: logging.LogRecord) -> bool:
    """Locust calls it an error that a user which it is about to stop has just ended by itself, as all of ours do."""
    return "didn't have proper args" not in record.getMessage()


@contextmanager
def resting_collector() -> Iterator[None]:
    """
    No garbage collection of its own accord: one takes milliseconds, in which no token is seen to arrive.

    What exists now is left alone altogether. Answers leave no cycles behind; for the few that other parts make there is
    a short collection of what is new once in a while.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    tidying = gevent.spawn(_tidy)
    try:
        yield
    finally:
        tidying.kill()
        gc.enable()
        gc.unfreeze()


def _tidy() -> NoReturn:
    while True:
        gevent.sleep(_TIDY_PERIOD_S)
        gc.collect(0)


@contextmanager
def _worker_processes(plan: RunPlan, port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """
    Load processes that get the plan through their standard input: it holds the API key, which no process list shows.

    They live in a session of their own, so that Ctrl-C reaches the master alone, and end when their input does.
    """
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(plan.processes):
            command = [sys.executable, "-m", "loadtest.worker", str(port), str(number)]
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            workers.append(worker)
            assert worker.stdin is not None
            worker.stdin.write(msgspec.json.encode(plan) + b"\n")
            worker.stdin.flush()
        yield workers
    finally:
        for worker in workers:
            assert worker.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.close()
        for worker in workers:
            try:
                worker.wait(5.0)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def _await(condition: Callable[[], bool], workers: list[subprocess.Popen[bytes]], limit_s: float, what: str) -> None:
    give_up = time.perf_counter() + limit_s
    while not condition():
        for number, worker in enumerate(workers):
            if worker.poll() is not None:
                raise WorkerProcessError(f"load process {number} ended with exit code {worker.returncode}")
        if time.perf_counter() > give_up:
            raise WorkerProcessError(f"expected the load processes to {what} within {limit_s:g} s, they did not")
        gevent.sleep(0.02)


def _check_alive(workers: list[subprocess.Popen[bytes]], run: MergedRun) -> None:
    for number, worker in enumerate(workers):
        if number not in run.finished and worker.poll() is not None:
            raise WorkerProcessError(
                f"load process {number} ended with exit code {worker.returncode} in the middle of the run"
            )


@contextmanager
def _interrupts() -> Iterator[Event]:
    """
    An event that the first SIGINT or SIGTERM sets; the second ends the process at once, without a report.

    Python's own handler would raise KeyboardInterrupt in whichever greenlet happens to run, in the middle of a request.
    """
    interrupted = Event()

    def on_signal() -> None:
        if interrupted.is_set():
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # the live display had hidden the cursor
            os._exit(130)
        interrupted.set()

    handlers = [gevent.signal_handler(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield interrupted
    finally:
        for handler in handlers:
            handler.cancel()
