"""The life of a real fleet, two vLLM CPU workers, from the first start to the last stop, as an operator sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.served import Served, alive, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

MODEL = "SmolLM2-135M-Instruct"
NAMES = (f"{MODEL}-0", f"{MODEL}-1")
START_S = 600
HANG_IDLE_S = 10
FILE = """
models:
  {model}:
    model: embedded
    replicas: 2
    launch:
      max_model_len: {length}
watch:
  hang_idle_s: {hang}
  backoff_initial_s: 0.5
"""


class Life:
    """One fleet over several supervisors, with one state directory and one configuration file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "fleet.yaml"
        self.state = folder / "state"
        self.write(length=2048)
        self.served = Served(["-c", str(self.file)], self.state)
        self.began = time.monotonic()

    def write(self, *, length: int) -> None:
        """The configuration; only the context length changes."""
        self.file.write_text(FILE.format(model=MODEL, length=length, hang=HANG_IDLE_S))

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.served.status()["workers"]
        return found

    def wait(self, condition: Callable[[], bool], what: str, within_s: float = START_S) -> None:
        wait_until(condition, within_s=within_s, what=what, context=lambda: self.served.output)
        print(f"{time.monotonic() - self.began:6.1f} s  {what}", flush=True)

    def both_ready(self) -> bool:
        return ["ready", "ready"] == [worker["state"] for worker in self.workers()]

    def ask(self, tokens: int = 8) -> str:
        """One answer, whole; the status must be 200."""
        answer = self.served.http.post(
            f"{self.served.base}/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "max_tokens": tokens,
                "temperature": 0,
            },
        )
        assert 200 == answer.status_code, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    def gateway(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gateway", *arguments],
            env=self.served.environ,
            capture_output=True,
            text=True,
            timeout=START_S,
        )


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """The fleet, up and ready; whatever is left of it at the end is killed."""
    life = Life(tmp_path_factory.mktemp("life"))
    try:
        with life.served:
            life.wait(lambda: _ready(life), "both workers ready")
            yield life
    finally:
        # Workers of a supervisor that a test killed are nobody's children.
        life.gateway("sweep")


def _ready(life: Life) -> bool:
    if life.served.process.poll() is not None:
        raise AssertionError(life.served.output)
    try:
        return life.both_ready()
    except httpx.TransportError:
        return False


def tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


class Asking(threading.Thread):
    """Asks one question after the other until told to stop, and keeps what went wrong."""

    def __init__(self, life: Life) -> None:
        super().__init__(daemon=True)
        self._life = life
        self._enough = threading.Event()
        self.answers = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._enough.is_set():
            try:
                self._life.ask()
                self.answers += 1
            except (AssertionError, httpx.HTTPError) as exc:
                self.failures.append(f"{type(exc).__name__}: {exc}")
            # Both engines share the machine's cores: asking without a pause would only slow the start of the other.
            self._enough.wait(1)

    def __enter__(self) -> Asking:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join(120)


def test_both_workers_answer(life: Life) -> None:
    assert "Paris" in life.ask(32)
    for name in NAMES:
        assert life.served.worker_metric(name, "vllm:generation_tokens_total") > 0, "warmed up"


def test_a_killed_api_server_is_replaced_while_the_other_worker_answers(life: Life) -> None:
    """kill -9: nothing of its tree is left, requests that begin from then on are all answered, and it comes back
    unasked, with the reason counted."""
    before = life.workers()[0]
    family = tree(before["pid"])
    assert len(family) > 1, "vLLM runs its engine in a process of its own"
    os.kill(before["pid"], signal.SIGKILL)
    life.wait(lambda: alive(family) == [], "the killed worker's whole tree is gone", within_s=30)
    with Asking(life) as asking:
        life.wait(life.both_ready, "the killed worker is ready again")
    after = life.workers()[0]

    assert [] == asking.failures
    assert asking.answers > 0
    assert before["pid"] != after["pid"]
    assert {"exited": 1} == after["restart_reasons"] or 1 == after["restarts"]


def test_a_stopped_engine_is_found_out_by_its_silence(life: Life) -> None:
    """SIGSTOP of EngineCore with a stream in flight: /health stays 200, yet its tree is dead within the idle limit
    plus 15 s; the client hears of it, and the other worker goes on answering."""
    worker = life.workers()[1]
    other = life.workers()[0]
    family = tree(worker["pid"])
    assert 0 == life.gateway("workers", "drain", other["name"]).returncode  # so that the stream lands on this one
    life.wait(lambda: "draining" == life.workers()[0]["state"], "the other worker is out of rotation", within_s=30)
    streaming, ended, chunks = threading.Event(), threading.Event(), []

    def stream() -> None:
        body = {"model": MODEL, "prompt": "Count:", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        try:
            with life.served.http.stream("POST", f"{life.served.base}/v1/completions", json=body) as answer:
                for chunk in answer.iter_raw():
                    chunks.append(chunk)
                    streaming.set()
        except httpx.TransportError:
            chunks.append(b"cut")
        finally:
            streaming.set()
            ended.set()

    client = threading.Thread(target=stream, daemon=True)
    client.start()
    assert streaming.wait(60)
    for process in family[1:]:
        process.suspend()
    stopped_at = time.monotonic()
    assert 0 == life.gateway("workers", "start", other["name"]).returncode
    assert 200 == httpx.get(f"http://{worker['address']}/health", timeout=60, trust_env=False).status_code
    life.wait(lambda: alive(family) == [], "the stopped engine's tree is dead", within_s=HANG_IDLE_S + 60)

    assert time.monotonic() - stopped_at < HANG_IDLE_S + 15
    assert ended.wait(30), "the client of the hung worker was left hanging"
    assert b"[DONE]" not in b"".join(chunks)
    assert "Paris" in life.ask(32)
    assert "hung" in life.workers()[1]["last_failure"]


def test_a_reload_rolls_one_changed_flag_through_the_fleet(life: Life) -> None:
    """Nothing but the flag changes; each worker is replaced, the one that serves last; a second reload finds no
    difference."""
    pids = [worker["pid"] for worker in life.workers()]
    life.write(length=1024)
    shown = life.gateway("reload", "--dry-run")
    assert f"models.{MODEL}.launch.max_model_len" in shown.stdout
    assert "2048" in shown.stdout
    assert [pids[0]] == [worker["pid"] for worker in life.workers()][:1], "a dry run does nothing"
    with Asking(life) as asking:
        done = life.gateway("reload")
    life.wait(life.both_ready, "both workers ready with the new flag")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert [] == asking.failures
    assert [1024, 1024] == [worker["max_model_len"] for worker in life.workers()]
    assert set(pids).isdisjoint(worker["pid"] for worker in life.workers())
    assert "no difference" in life.gateway("reload").stdout


def test_a_killed_supervisor_leaves_its_workers_to_the_next(life: Life) -> None:
    """kill -9 of the supervisor: the next one serves with the same worker processes, no model is loaded again."""
    before = [(worker["pid"], worker["port"]) for worker in life.workers()]
    os.kill(life.served.process.pid, signal.SIGKILL)
    life.served.process.wait(30)
    with Served(["-c", str(life.file)], life.state) as second:
        life.served = second
        life.wait(lambda: _ready(life), "the next supervisor serves", within_s=60)
        after = [(worker["pid"], worker["port"]) for worker in life.workers()]

        assert before == after
        assert "Paris" in life.ask(32)
        assert "adopted" in second.output

        family = [*second.family(), *(member for pid, _ in after for member in tree(pid))]
        second.process.send_signal(signal.SIGINT)
        assert 0 == second.process.wait(40), second.output
        assert [] == alive(family)
        assert [] == list((life.state / "records").iterdir())
        assert not (life.state / "run").exists()
