"""Failures that others have had with workers and stops (`tests/corpus/corpus_ids.json`), on a running gateway."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.served import Served, alive, free_port, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

FIRST_BYTE_S = 3.0


@contextmanager
def simulator(*options: str) -> Iterator[tuple[int, psutil.Process]]:
    """A worker that somebody else runs: its port and its API server."""
    port = free_port()
    command = [sys.executable, "-m", "loadtest.servers.simulator", "--served-model-name", "sim", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--sim-start-s", "0.1", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        server = psutil.Process(process.pid)
        try:
            yield port, server
        finally:
            family = [server, *server.children(recursive=True)]
            for member in family:
                member.kill()


def configuration(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    return ["-c", str(file)]


def states(served: Served) -> dict[str, str]:
    return {worker["name"]: worker["state"] for worker in served.status()["workers"]}


def ask(served: Served, **more: object) -> tuple[int, dict[str, Any], float]:
    """One small request: status, body, seconds."""
    began_s = time.monotonic()
    answer = served.http.post(
        f"{served.base}/v1/completions", json={"model": "sim", "prompt": "hello", "max_tokens": 2, **more}
    )
    return answer.status_code, answer.json(), time.monotonic() - began_s


def test_c45_one_unresponsive_worker_does_not_stall_the_others(tmp_path: Path) -> None:
    """
    A worker that accepts and never answers again: requests on it end with 504 and an error object at the configured
    time, those on the other one are as fast as before, and the health probes take it out of rotation.
    """
    with simulator() as (hanging, server), simulator() as (healthy, _):
        text = f"""
models:
  sim:
    workers: [{{url: "http://127.0.0.1:{hanging}"}}, {{url: "http://127.0.0.1:{healthy}"}}]
    timeouts: {{first_byte_s: {FIRST_BYTE_S}, first_token_s: {FIRST_BYTE_S}}}
watch: {{probe_interval_s: 2, probe_timeout_s: 5, probe_misses: 2}}
"""
        with Served(configuration(tmp_path, text), tmp_path / "state") as served:
            served.wait_ready(within_s=60)
            wait_until(lambda: set(states(served).values()) == {"ready"}, within_s=60, what="both workers ready")
            assert [200] * 10 == [ask(served)[0] for _ in range(10)]
            server.suspend()
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda _: ask(served), range(100)))
            good = [took_s for status, _, took_s in answers if status == 200]
            late = [(status, body, took_s) for status, body, took_s in answers if status != 200]
            assert 0 < len(late) < 50
            for status, body, took_s in late:
                assert 504 == status
                assert {"message", "type", "param", "code"} == set(body["error"])
                assert FIRST_BYTE_S <= took_s < FIRST_BYTE_S * 5
            assert max(good) < FIRST_BYTE_S
            wait_until(
                lambda: sorted(states(served).values()) == ["ready", "unhealthy"], within_s=60, what="it taken out"
            )
            assert [200] * 20 == [ask(served)[0] for _ in range(20)]
            server.resume()
            wait_until(lambda: set(states(served).values()) == {"ready"}, within_s=60, what="it back in rotation")


def slow_fleet(tmp_path: Path, *, drain_s: float) -> list[str]:
    """One launched worker that streams twenty tokens a second."""
    return configuration(
        tmp_path,
        f"""
models:
  sim:
    model: simulated
    launch: {{extra_args: ["--sim-start-s", "0.1", "--sim-itl-ms", "50"]}}
engines:
  default: {{command: ["{{python}}", "-m", "loadtest.servers.simulator"]}}
drain_timeout_s: {drain_s}
""",
    )


STREAM = {"model": "sim", "prompt": "hello", "stream": True, "ignore_eos": True}


def test_c47_a_stop_lets_live_streams_finish(tmp_path: Path) -> None:
    """
    SIGTERM with a stream under way: not ready any more before anything else happens, nothing new is taken on, the
    stream ends with its last event, and the program with status 0.
    """
    with Served(slow_fleet(tmp_path, drain_s=30), tmp_path / "state") as served:
        served.wait_ready(within_s=60)
        idle = httpx.Client(trust_env=False, timeout=30)
        assert 200 == idle.get(f"{served.base}/ready").status_code
        with served.http.stream("POST", f"{served.base}/v1/completions", json={**STREAM, "max_tokens": 120}) as stream:
            lines = stream.iter_lines()
            received = [next(lines)]
            served.process.send_signal(signal.SIGTERM)
            wait_until(lambda: served.status()["draining"], within_s=30, what="draining", context=lambda: served.output)
            refused = refusal(idle, served)
            received += lines
        family = served.family()
        assert 0 == served.process.wait(30), served.output
        idle.close()
    assert refused.startswith("503") or refused == "no connection"
    events = [line.removeprefix("data: ") for line in received if line]
    assert "[DONE]" == events[-1]
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "length" == choices[-1]["finish_reason"]
    assert [] == alive(family)


def test_c47_answers_during_a_stop_end_their_connection(tmp_path: Path) -> None:
    """So that a client's or a load balancer's pool moves on, instead of meeting a closed socket."""
    with Served(slow_fleet(tmp_path, drain_s=10), tmp_path / "state") as served:
        served.wait_ready(within_s=60)
        kept = httpx.Client(trust_env=False, timeout=30)
        assert 200 == kept.get(f"{served.base}/ready").status_code
        with served.http.stream("POST", f"{served.base}/v1/completions", json={**STREAM, "max_tokens": 120}) as stream:
            next(stream.iter_lines())
            served.process.send_signal(signal.SIGTERM)
            wait_until(lambda: served.status()["draining"], within_s=30, what="draining", context=lambda: served.output)
            refused = refusal(kept, served)
            kept.close()
    assert refused in {"503 close", "no connection"}


def refusal(client: httpx.Client, served: Served) -> str:
    """What requests get once the gateway process has heard of the stop too, a moment after the supervisor says so."""
    answers: list[str] = []

    def refused() -> bool:
        answers.append(late_request(client, served))
        return not answers[-1].startswith("200")

    wait_until(refused, within_s=30, what="a refused request", context=lambda: served.output)
    return answers[-1]


def late_request(client: httpx.Client, served: Served) -> str:
    """What a request on a kept connection gets after the stop has begun."""
    try:
        answer = client.post(f"{served.base}/v1/completions", json={"model": "sim", "prompt": "x", "max_tokens": 1})
    except httpx.TransportError:
        return "no connection"
    return f"{answer.status_code} {answer.headers.get('connection', 'kept')}"


def test_c47_what_does_not_finish_in_time_is_told_so(tmp_path: Path) -> None:
    """The drain time passes: an error event in the stream, no [DONE], and the end all the same with status 0."""
    with Served(slow_fleet(tmp_path, drain_s=1), tmp_path / "state") as served:
        served.wait_ready(within_s=60)
        with served.http.stream("POST", f"{served.base}/v1/completions", json={**STREAM, "max_tokens": 2000}) as stream:
            lines = stream.iter_lines()
            received = [next(lines)]
            served.process.send_signal(signal.SIGTERM)
            received += lines
        assert 0 == served.process.wait(30), served.output
    events = [line.removeprefix("data: ") for line in received if line.startswith("data: ")]
    assert "[DONE]" not in events
    assert "error" in json.loads(events[-1])


def test_c47_a_second_signal_forces_the_end(tmp_path: Path) -> None:
    """Long before the drain time has passed; nothing is left."""
    with Served(slow_fleet(tmp_path, drain_s=120), tmp_path / "state") as served:
        served.wait_ready(within_s=60)
        with served.http.stream("POST", f"{served.base}/v1/completions", json={**STREAM, "max_tokens": 2000}) as stream:
            next(stream.iter_lines())
            family = served.family()
            served.process.send_signal(signal.SIGTERM)
            wait_until(lambda: served.status()["draining"], within_s=30, what="draining", context=lambda: served.output)
            served.process.send_signal(signal.SIGTERM)
            served.process.wait(60)
    assert [] == alive(family)


def test_c47_a_worker_is_out_of_rotation_before_it_is_stopped(tmp_path: Path) -> None:
    """`gateway workers stop` under a stream: the stream ends whole, later requests never meet the worker's refusal."""
    text = """
models:
  sim:
    model: simulated
    replicas: 2
    launch: {extra_args: ["--sim-start-s", "0.1", "--sim-itl-ms", "50"]}
engines:
  default: {command: ["{python}", "-m", "loadtest.servers.simulator"]}
"""
    with Served(configuration(tmp_path, text), tmp_path / "state") as served:
        served.wait_ready(within_s=60)
        wait_until(lambda: set(states(served).values()) == {"ready"}, within_s=60, what="both workers ready")
        streams = []
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(whole_stream, served) for _ in range(4)]
            wait_until(
                lambda: all(worker["in_flight"] for worker in served.status()["workers"]),
                within_s=60,
                what="streams on both workers",
            )
            command = [sys.executable, "-m", "gateway", "workers", "stop", "sim-0"]
            assert 0 == subprocess.run(command, env=served.environ, capture_output=True, timeout=60).returncode
            while states(served)["sim-0"] != "stopped":
                assert 200 == ask(served)[0]
            assert ["[DONE]"] * 4 == [stream.result() for stream in streams]


def whole_stream(served: Served) -> str:
    """The last event of a stream of eight seconds."""
    with httpx.stream(
        "POST", f"{served.base}/v1/completions", json={**STREAM, "max_tokens": 160}, timeout=60, trust_env=False
    ) as stream:
        return [line.removeprefix("data: ") for line in stream.iter_lines() if line][-1]
