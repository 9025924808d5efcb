"""What the dashboards look at: a fleet of simulated workers, requests, a load test, and Prometheus watching."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.e2e.served import Served, free_port, wait_until
from tests.grafana.live import LivePrometheus, Series
from tests.grafana.reading import ROOT, Target, every_target
from tests.grafana.traffic import Traffic, create_keys, write_fleet

QUICKER = (
    # The hung worker and its engine after seconds instead of minutes; a few preemptions are enough.
    (r"for: \w+", "for: 1s"),
    (r"> 90\b", "> 3"),
    (r"> 0\.05\b", "> 0.01"),
    (r"iteration_tokens_total_count\[2m\]", "iteration_tokens_total_count[4s]"),
)
FIRING = ("GatewayWorkerHung", "GatewayEngineStalled", "GatewayPreempting", "GatewayWorkerCrashLoop")
"""Alerts that the fleet's bad workers bring about."""
BEHIND = """
sum by (worker) (gateway_worker_restarts_total) or gateway_worker_progress_age_seconds or vllm:num_preemptions_total
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """
    A Prometheus after the requests, and the gateway it watches; a load test goes on. `idle`: what tiles and tables got
    before the first request.
    """

    prometheus: LivePrometheus
    served: Served
    idle: Mapping[str, list[Series]]


@contextmanager
def observed(folder: Path) -> Iterator[Observed]:
    """Inside: every target was scraped four times since the last request, and the alerts in FIRING fire."""
    fleet = write_fleet(folder)
    keys = create_keys(folder / "state")
    metrics_port = free_port()
    path = os.pathsep.join([str(folder / "driver"), str(ROOT)])
    with (
        Served(["-c", str(fleet)], folder / "state", environ={"PYTHONPATH": path}) as served,
        LivePrometheus(
            folder / "prometheus",
            {"gateway": [f"127.0.0.1:{served.admin_port}"], "loadtest": [f"127.0.0.1:{metrics_port}"]},
            {"vllm": f"{served.admin}/discovery"},
            QUICKER,
        ) as prometheus,
    ):
        served.wait_ready(within_s=60)
        wait_until(
            lambda: (prometheus.value('min(count_over_time(up{job!="loadtest"}[10s]))') or 0) >= 2,
            within_s=120,
            what="two scrapes of gateway and workers",
            context=prometheus.said,
        )
        idle = {target.name: prometheus.answer(target) for target in every_target() if target.instant}
        traffic = Traffic(served, keys)
        with (
            traffic.held(),
            load_test(served, folder, metrics_port, "--model", "demo", "--rate", "3", key=keys["bench"]) as load,
        ):
            traffic.send()
            for times in range(1, 4):
                traffic.break_worker()
                wait_until(
                    partial(_ready_again, served, "frail-0", times), within_s=60, what=f"frail-0 back after end {times}"
                )
            traffic.command("demo-1", "drain")
            wait_until(
                lambda: prometheus.value('gateway_worker_state{worker="demo-1", state="draining"}') == 1,
                within_s=60,
                what="demo-1 draining, in Prometheus",
            )
            traffic.command("demo-1", "start")
            traffic.send()
            wait_until(
                lambda: all(
                    prometheus.value(f'ALERTS{{alertname="{alert}", alertstate="firing"}}') for alert in FIRING
                ),
                within_s=120,
                what=f"firing: {FIRING}",
                context=lambda: "\n".join(map(str, prometheus.answer(Target("", "", f"ALERTS or {BEHIND}", True)))),
            )
            wait_until(
                lambda: (
                    (prometheus.value("min(count_over_time(up[8s]))") or 0) >= 4
                    and prometheus.value('up{job="loadtest"}') == 1
                ),
                within_s=180,
                what="four scrapes of every target",
                context=lambda: prometheus.said() + load.said(),
            )
            yield Observed(prometheus, served, idle)


@dataclass(frozen=True, slots=True)
class LoadTest:
    """A load test in a process of its own, and where its output goes."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """Whether it still runs, and what it has printed so far."""
        code = self.process.poll()
        state = "running" if code is None else f"ended with {code}"
        return f"load test: {state}\n{self.log.read_text(encoding='utf-8', errors='replace')}"


@contextmanager
def load_test(served: Served, folder: Path, metrics_port: int, *load: str, key: str = "") -> Iterator[LoadTest]:
    """Streaming chats until the block ends, with the load test's own metrics; `key` where the gateway asks for one."""
    command = [
        *(sys.executable, "-m", "loadtest", "chat", "--target", served.base, *load),
        *("--duration", "600s", "--warmup", "0s", "--calibrate", "never", "--yes"),
        *("--results", str(folder / "results"), "--metrics-port", str(metrics_port)),
    ]
    path = folder / "loadtest.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            ["env", "--default-signal=INT", *command],
            cwd=ROOT,
            env={**os.environ, **({"GATEWAY_API_KEY": key} if key else {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield LoadTest(process, path)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _ready_again(served: Served, worker: str, restarts: int) -> bool:
    """It serves after that many restarts, as `gateway status` has it."""
    (found,) = [one for one in served.status()["workers"] if one["name"] == worker]
    return bool(found["state"] == "ready" and found["restarts"] == restarts)
