"""
One load process of a run with --processes: `python -m loadtest.worker PORT NUMBER`, started by the master only.

Reads the plan as one line of JSON from its standard input and ends when that input ends, so it cannot outlive a master
that was killed.
"""

import sys

from gevent import monkey

monkey.patch_all()

import contextlib  # noqa: E402 - the patch must come first
import os  # noqa: E402
import signal  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
import msgspec  # noqa: E402
from gevent.event import Event  # noqa: E402
from gevent.fileobject import FileObject  # noqa: E402
from locust.env import Environment  # noqa: E402
from locust.runners import WorkerRunner  # noqa: E402

from loadtest.generator import Generator  # noqa: E402
from loadtest.locust_run import SAMPLE_PERIOD_S, finish, resting_collector  # noqa: E402
from loadtest.locust_users import teller, user_class  # noqa: E402
from loadtest.plan import RunPlan  # noqa: E402
from loadtest.process_report import ProcessReport  # noqa: E402
from loadtest.stalls import StallGuard  # noqa: E402
from loadtest.worker_messages import BEGIN, END, LISTENING, REPORT  # noqa: E402


def main(argv: Sequence[str]) -> int:
    """Connects, generates load, reports, and leaves when the master says so."""
    port, process = int(argv[0]), int(argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin = FileObject(sys.stdin.buffer, "rb")
    plan = msgspec.json.decode(stdin.readline(), type=RunPlan)
    gevent.spawn(_end_with, stdin)
    with StallGuard(plan.read_timeout_s) as guard:
        environment = Environment(stop_timeout=plan.drain_s)
        generator = Generator(plan, process, guard, teller(environment))
        environment.user_classes = [user_class(plan, generator)]
        with resting_collector():
            runner = environment.create_worker_runner("127.0.0.1", port)
            _work(environment, runner, generator, plan.drain_s)
    return 0


def _work(environment: Environment, runner: WorkerRunner, generator: Generator, drain_s: float) -> None:
    begun, ended = Event(), Event()

    def on_begin(environment: Environment, msg: Any, **_: Any) -> None:
        generator.started = msg.data["started"]
        begun.set()

    def on_end(environment: Environment, msg: Any, **_: Any) -> None:
        generator.end()
        ended.set()

    def send(report: ProcessReport) -> None:
        runner.send_message(REPORT, {"report": report.to_bytes()})

    def tick() -> None:
        if generator.broken is not None:
            raise generator.broken
        send(generator.report())

    runner.register_message(BEGIN, on_begin)
    runner.register_message(END, on_end)
    runner.send_message(LISTENING, {})
    begun.wait()
    loop_watch = gevent.spawn(generator.watch_loop)
    while not ended.wait(SAMPLE_PERIOD_S):
        tick()
    finish(runner, drain_s, tick)
    loop_watch.kill()
    # Locust's own report comes every three seconds: its totals would lack the end of the run.
    stats: dict[str, Any] = {}
    total = environment.stats.total
    requests, failures = total.num_requests, total.num_failures
    fill: Any = environment.events.report_to_master
    fill.fire(client_id=runner.client_id, data=stats)
    runner.send_message("stats", stats)
    send(generator.report(final=True, locust_requests=requests, locust_failures=failures))
    runner.greenlet.join()  # until the master's "quit"


def _end_with(stdin: Any) -> None:
    """Ends the process when the master's end of the pipe is closed."""
    with contextlib.suppress(OSError):
        stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
