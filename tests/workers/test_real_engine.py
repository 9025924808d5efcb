"""The real engine under a supervisor, again and again: deaths of each of its processes, ranks, starts and stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.setup.directories import directories
from gateway.setup.model import default_model_folder
from gateway.workers.shared_memory import PREFIXES, SHARED
from tests.e2e.served import Served, alive, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(1800)]

START_S = 600
CYCLES = 5


class Fleet:
    """One worker of the real engine; every step that took its time is printed for the record."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.began_s = time.monotonic()

    @property
    def worker(self) -> dict[str, Any]:
        (found,) = self.served.status()["workers"]
        return dict(found)

    def reaches(self, state: str, *, other_than: int | None = None) -> dict[str, Any]:
        """Until the worker is in that state (as another process than `other_than`)."""
        wait_until(
            lambda: self.worker["state"] == state and (other_than is None or self.worker["pid"] != other_than),
            within_s=START_S,
            what=f"the worker {state}",
            context=lambda: self.served.output,
        )
        self.tell(state)
        return self.worker

    def tell(self, what: str) -> None:
        print(f"{time.monotonic() - self.began_s:7.1f} s  {what}", flush=True)

    def processes(self) -> dict[str, psutil.Process]:
        """The worker's tree by what each process calls itself."""
        leader = psutil.Process(self.worker["pid"])
        return {each.name(): each for each in (leader, *leader.children(recursive=True))}

    def order(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "gateway", "workers", *arguments]
        done = subprocess.run(command, env=self.served.environ, capture_output=True, text=True, timeout=120)
        assert 0 == done.returncode, done.stderr

    def ask(self) -> dict[str, Any]:
        answer = self.served.http.post(
            f"{self.served.base}/v1/completions", json={"model": "m", "prompt": "The capital of", "max_tokens": 4}
        )
        assert 200 == answer.status_code, answer.text
        found: dict[str, Any] = answer.json()
        return found


@contextmanager
def fleet(folder: Path, model: str, launch: str = "{max_model_len: 512}") -> Iterator[Fleet]:
    """A gateway with one worker, READY; what it leaves in its own folders and in shared memory must be nothing."""
    (folder / "tmp").mkdir()
    file = folder / "gateway.yaml"
    file.write_text(f"models: {{m: {{model: {model}, launch: {launch}}}}}\nwatch: {{backoff_initial_s: 0.5}}\n")
    before = segments()
    with Served(["-c", str(file)], folder / "state", environ={"TMPDIR": str(folder / "tmp")}) as served:
        running = Fleet(served)
        served.wait_ready(within_s=START_S)
        running.tell("ready")
        yield running
        family = served.family()
        served.process.send_signal(signal.SIGTERM)
        assert 0 == served.process.wait(60), served.output
    assert [] == alive(family)
    assert set() == segments() - before
    assert [] == os.listdir(folder / "tmp")
    assert not (folder / "state" / "run").exists()


def segments() -> set[str]:
    """Shared memory of the kinds that an engine makes."""
    return {name for name in os.listdir(SHARED) if name.startswith(PREFIXES)}


def test_an_engine_and_a_worker_that_are_killed_come_back(tmp_path: Path) -> None:
    """kill -9 of each process below the API server, which then ends with status 0: a crash, and nothing is left."""
    with fleet(tmp_path, "embedded") as running:
        for victim in ("VLLM::EngineCore", "VLLM::Worker"):
            before = running.worker
            tree = running.processes()
            tree[victim].kill()
            running.tell(f"killed {victim}")
            running.reaches("backoff")
            assert "exit status 0" in running.worker["last_failure"]
            assert [] == alive(tree.values())
            running.reaches("ready", other_than=before["pid"])
            running.ask()


def test_starts_and_stops_leave_nothing(tmp_path: Path) -> None:
    """Five lives of the real engine."""
    with fleet(tmp_path, "embedded") as running:
        kept = segments()
        for _ in range(CYCLES):
            tree = running.processes()
            running.ask()
            running.order("stop", "m-0")
            running.reaches("stopped")
            assert [] == alive(tree.values())
            assert segments() < kept
            left = [file for file in (tmp_path / "tmp").rglob("*") if not file.is_dir() and file.suffix != ".sock"]
            assert [] == left + list((tmp_path / "tmp").rglob("tmp-*"))
            running.order("start", "m-0")
            running.reaches("ready")


def test_two_ranks_answer_together(tmp_path: Path) -> None:
    """
    Tensor parallel 2, with a model whose heads two divides (random weights; the embedded model has nine heads).

    The answers' fingerprint tells the ranks; a killed rank brings the whole worker down, and back.
    """
    model = tmp_path / "two-ranks"
    source = default_model_folder(directories(os.environ).cache)
    model.mkdir()
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja") and not file.name.startswith("."):
            shutil.copy(file, model)
    config = json.loads((model / "config.json").read_bytes())
    config |= {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512, "num_hidden_layers": 4}
    (model / "config.json").write_text(json.dumps(config))
    launch = "{max_model_len: 512, tensor_parallel_size: 2, load_format: dummy}"
    with fleet(tmp_path, str(model), launch) as running:
        assert "-tp2-" in running.ask()["system_fingerprint"]
        before = running.worker
        ranks = [each for name, each in running.processes().items() if name.startswith("VLLM::Worker_TP")]
        assert 2 == len(ranks)
        ranks[1].kill()
        running.tell("killed a rank")
        running.reaches("ready", other_than=before["pid"])
        running.ask()
