"""`gateway up` over simulated workers: operating a fleet by the command line, and what remains after any end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.served import Served, alive, standing, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

DEMO = Path(__file__).parents[2] / "deploy/examples/demo.yaml"
READY_S = 60


def demo(state: Path) -> Served:
    return Served(["-c", str(DEMO)], state, environ={"GATEWAY_CACHE_DIR": str(state.parent / "cache")})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One fleet for the tests that leave it as it was."""
    with demo(tmp_path_factory.mktemp("home") / "state") as running:
        running.wait_ready(within_s=READY_S)
        wait_until(lambda: states(running) == ["ready", "ready"], within_s=READY_S, what="two workers ready")
        yield running


def gateway(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env=served.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def states(served: Served) -> list[str]:
    return [worker["state"] for worker in served.status()["workers"]]


def test_status_shows_the_fleet_to_people_and_programs(served: Served) -> None:
    table = gateway(served, "status")
    report = json.loads(gateway(served, "status", "--json").stdout)

    assert 0 == table.returncode, table.stderr
    waiting = "2 of 2 workers ready, 0 requests waiting"
    for expected in ("demo-0", "demo-1", "ready", f"{served.base}/v1", served.admin, waiting):
        assert expected in table.stdout
    assert ["demo-0", "demo-1"] == [worker["name"] for worker in report["workers"]]
    assert all(worker["pid"] and worker["port"] for worker in report["workers"])
    assert ([0], []) == ([model["waiting"] for model in report["models"]], report["quarantined_gpus"])


def test_a_gpu_that_is_not_out_of_use_is_not_returned(served: Served) -> None:
    done = gateway(served, "gpus", "return", "0")

    assert 1 == done.returncode
    assert "gateway: GPU 0 is not out of use; those that are: none" == done.stderr.strip()


def test_a_worker_is_drained_started_and_restarted_by_name(served: Served) -> None:
    """Requests are answered throughout by the other one; the restarted worker is another process."""
    before = served.status()["workers"][1]["pid"]

    assert 0 == gateway(served, "workers", "drain", "demo-1").returncode
    wait_until(lambda: states(served) == ["ready", "draining"], within_s=30, what="demo-1 draining")
    answer = served.http.post(
        f"{served.base}/v1/completions", json={"model": "demo", "prompt": "hello", "max_tokens": 2}
    )
    assert 200 == answer.status_code
    assert 0 == gateway(served, "workers", "start", "demo-1").returncode
    wait_until(lambda: states(served) == ["ready", "ready"], within_s=30, what="demo-1 back in rotation")
    assert before == served.status()["workers"][1]["pid"]
    assert 0 == gateway(served, "workers", "restart", "demo-1").returncode
    wait_until(
        lambda: states(served) == ["ready", "ready"] and served.status()["workers"][1]["pid"] != before,
        within_s=READY_S,
        what="demo-1 ready as another process",
    )


def test_commands_for_no_such_worker_name_the_known_ones(served: Served) -> None:
    done = gateway(served, "workers", "stop", "demo-7")

    assert 1 == done.returncode
    assert "demo-0, demo-1" in done.stderr


def test_logs_show_what_a_worker_printed(served: Served) -> None:
    done = gateway(served, "logs", "demo-0")

    assert 0 == done.returncode
    assert "Application startup complete" in done.stdout


def test_metrics_and_worker_metrics_agree_with_the_client(served: Served) -> None:
    """The gateway's total and the worker's own counter rise by the usage that the client was told."""

    def total(text: str, name: str) -> float:
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))

    def gateway_total() -> float:
        return total(served.http.get(f"{served.admin}/metrics").text, "gateway_output_tokens_total")

    def worker_total() -> float:
        return sum(served.worker_metric(name, "vllm:generation_tokens_total") for name in ("demo-0", "demo-1"))

    gateway_before, worker_before = standing(gateway_total), standing(worker_total)
    usage = served.http.post(
        f"{served.base}/v1/completions", json={"model": "demo", "prompt": "hello", "max_tokens": 7, "ignore_eos": True}
    ).json()["usage"]

    assert 7 == usage["completion_tokens"]
    wait_until(lambda: gateway_total() == gateway_before + 7, within_s=60, what="seven more on /metrics")
    wait_until(lambda: worker_total() == worker_before + 7, within_s=60, what="seven more at the workers")


def test_a_killed_gateway_process_costs_no_connection_and_no_worker(served: Served) -> None:
    """kill -9: every request sent from then on is answered, totals do not fall, workers are the same processes."""
    report = served.status()
    workers = [worker["pid"] for worker in report["workers"]]
    totals = served.http.get(f"{served.admin}/metrics").text
    (process,) = report["gateway_processes"]
    os.kill(process["pid"], signal.SIGKILL)
    with_new_connections = [
        subprocess.run(
            ["curl", "-sS", "--noproxy", "*", "--max-time", "60", f"{served.base}/v1/models"],
            capture_output=True,
            text=True,
        )
        for _ in range(5)
    ]

    assert [0] * 5 == [each.returncode for each in with_new_connections], with_new_connections
    assert process["pid"] != served.status()["gateway_processes"][0]["pid"]
    assert workers == [worker["pid"] for worker in served.status()["workers"]]
    counted = [line for line in totals.splitlines() if line.startswith("gateway_requests_total") and "ok" in line]
    now = served.http.get(f"{served.admin}/metrics").text
    assert counted
    for line in counted:
        series, value = line.rsplit(" ", 1)
        (after,) = (each for each in now.splitlines() if each.startswith(series + " "))
        assert float(after.rsplit(" ", 1)[1]) >= float(value)


def test_running_streams_finish_when_the_gateway_is_asked_to_stop(tmp_path: Path) -> None:
    """SIGTERM during a stream: it ends as it would have, then everything is gone within 30 s with exit code 0."""
    with demo(tmp_path / "state") as served:
        served.wait_ready(within_s=READY_S)
        family = served.family()
        body = {"model": "demo", "prompt": "count", "max_tokens": 100, "ignore_eos": True, "stream": True}
        text = b""
        with served.http.stream("POST", f"{served.base}/v1/completions", json=body) as answer:
            for chunk in answer.iter_raw():
                if not text:
                    served.process.send_signal(signal.SIGTERM)
                text += chunk

        assert served.ended(within_s=30) == 0, served.output
        assert text.endswith(b"data: [DONE]\n\n")
        assert b'"finish_reason":"length"' in text
        assert [] == alive(family)
        assert "no process left" in served.output.splitlines()[-1]


@pytest.mark.parametrize("after", ["at once", "starting", "ready"])
def test_the_next_gateway_adopts_what_a_killed_one_left(tmp_path: Path, after: str) -> None:
    """kill -9 of the supervisor at any moment: its workers go on under the next one, in whatever phase they are, and
    end with it. Only a launch that was interrupted before its record was complete may be ended instead."""
    state = tmp_path / "state"
    with demo(state) as first:
        if after == "at once":
            wait_until(lambda: any((state / "records").glob("*.json")), within_s=READY_S, what="a launch record")
        elif after == "starting":
            wait_until(lambda: "weights" in first.output, within_s=READY_S, what="weights")
        else:
            wait_until(lambda: first_states(first) == ["ready", "ready"], within_s=READY_S, what="two workers ready")
        pids = worker_pids(state)
        family = first.family()
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(30)
        with demo(state) as second:
            wait_until(lambda: first_states(second) == ["ready", "ready"], within_s=READY_S, what="two workers ready")
            if after != "at once":
                assert pids == {worker["pid"] for worker in second.status()["workers"]}
                assert "adopted demo-0" in second.output
            assert [0, 0] == [worker["restarts"] for worker in second.status()["workers"]]
            family += [each for pid in worker_pids(state) for each in tree(pid)]
            second.process.send_signal(signal.SIGINT)

            assert second.process.wait(30) == 0, second.output
        wait_until(lambda: alive(family) == [], within_s=30, what="nothing left of either gateway")
        assert [] == list((state / "records").iterdir())
        assert not (state / "run").exists()


def test_a_restarted_adopted_worker_is_another_process_and_its_log_goes_on(tmp_path: Path) -> None:
    """What an adopted worker prints is seen under its name; a restart by command launches anew."""
    state = tmp_path / "state"
    with demo(state) as first:
        wait_until(lambda: first_states(first) == ["ready", "ready"], within_s=READY_S, what="two workers ready")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(30)
        with demo(state) as second:
            wait_until(lambda: first_states(second) == ["ready", "ready"], within_s=READY_S, what="two workers ready")
            before = second.status()["workers"][0]
            old = tree(before["pid"])
            assert "Application startup complete" in gateway(second, "logs", "demo-0").stdout
            assert 0 == gateway(second, "workers", "restart", "demo-0").returncode
            wait_until(
                lambda: (
                    second.status()["workers"][0]["pid"] not in (before["pid"], None)
                    and first_states(second) == ["ready", "ready"]
                ),
                within_s=READY_S,
                what="demo-0 ready as another process",
            )
            wait_until(lambda: alive(old) == [], within_s=30, what="nothing left of the old process")


def test_swept_workers_are_gone(tmp_path: Path) -> None:
    """`gateway sweep` ends the workers of a killed gateway; as ExecStopPost after a crash it leaves them; while a
    gateway runs it is refused."""
    state = tmp_path / "state"
    with demo(state) as first:
        first.wait_ready(within_s=READY_S)
        family = [each for pid in worker_pids(state) for each in tree(pid)]
        sockets = Path(json.loads((state / "supervisor.json").read_text())["socket"]).parent
        running = gateway(first, "sweep")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(30)
        first.environ["SERVICE_RESULT"] = "signal"
        crashed = gateway(first, "sweep", "--after-stop")
        left = alive(family)
        first.environ["SERVICE_RESULT"] = "success"
        stopped = gateway(first, "sweep", "--after-stop")

    assert (5, 0, 0) == (running.returncode, crashed.returncode, stopped.returncode), stopped.stderr
    assert len(family) == len(left)
    assert [] == alive(family)
    assert not sockets.exists()
    assert not (state / "supervisor.json").exists()
    assert [] == list((state / "records").iterdir())


def first_states(served: Served) -> list[str]:
    """States of the workers; none while the gateway does not answer yet."""
    if served.process.poll() is not None:
        raise AssertionError(f"gateway up ended with {served.process.returncode}\n{served.output}")
    try:
        return states(served)
    except httpx.TransportError:
        return []


def worker_pids(state: Path) -> set[int]:
    """Of the launches on record."""
    found = (json.loads(path.read_text()) for path in (state / "records").glob("*.json"))
    return {record["pid"] for record in found if record["pid"]}


def tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def test_a_second_interrupt_does_not_wait_for_streams(tmp_path: Path) -> None:
    """Twice Ctrl-C with a stream of a minute in flight: it is not waited for, although the drain time is 25 s, and does
    not look complete."""
    with demo(tmp_path / "state") as served:
        served.wait_ready(within_s=READY_S)
        family = served.family()
        body = {"model": "demo", "prompt": "count", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        seen: list[bytes] = []
        streaming = threading.Event()

        def read() -> None:
            with served.http.stream("POST", f"{served.base}/v1/completions", json=body) as answer:
                try:
                    for chunk in answer.iter_raw():
                        seen.append(chunk)
                        streaming.set()
                except Exception:
                    return  # cut off, which is what is wanted

        reader = threading.Thread(target=read)
        reader.start()
        assert streaming.wait(30)
        served.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping (SIGINT)" in served.output, within_s=60, what="the first signal's line")
        served.process.send_signal(signal.SIGINT)

        assert served.ended(within_s=20) == 0, served.output
        reader.join(30)
        assert b"[DONE]" not in b"".join(seen)
        assert [] == alive(family)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_set_up_ends_with_130_and_without_children(tmp_path: Path, number: signal.Signals) -> None:
    """The engine's interpreter is being tried when the signal comes: one line, nothing left, nothing half-started."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    with Served(["org/model", "--engine-python", str(slow)], tmp_path / "state") as served:
        wait_until(
            lambda: any(each.name() == "sleep" for each in served.family()),
            within_s=30,
            what="the engine's interpreter running",
            context=lambda: served.output,
        )
        family = served.family()
        served.process.send_signal(number)

        assert served.ended(within_s=60) == 130, served.output
        assert "gateway: interrupted during set-up" in served.output
        assert "Traceback" not in served.output
        assert [] == alive(family)
        assert [] == list((tmp_path / "state" / "records").iterdir())
