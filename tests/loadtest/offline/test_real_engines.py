"""The offline benchmark with the real engines on the CPU, in the smallest size that says something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SMALL = (
    *("--prompts", "2", "--output-tokens", "4", "--one-by-one", "1", "--batches", "2", "--repeats", "1"),
    *("--threads", "1"),
)
"""On a busy machine two threads mostly wait for each other."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder whose path is short enough for vLLM's sockets."""
    with tempfile.TemporaryDirectory(prefix="offline-", dir="/tmp") as folder:
        yield Path(folder)


def test_both_engines_do_the_same_work_and_mostly_agree(tmp_path: Path, temporary: Path) -> None:
    """Equal tokens counted, one dtype, greedy answers that begin alike, nothing left running, no socket left."""
    paths = subprocess.run(
        [sys.executable, "-m", "gateway.setup.prepare", "--paths"], capture_output=True, text=True, check=True
    )
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.offline", "--engine", paths.stdout, "--results", str(tmp_path), *SMALL],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(temporary)},
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    result = json.loads((folder / "result.json").read_text())

    assert {"transformers, one by one", "transformers, best batch", "vllm"} == set(result["modes"])
    assert [4, 8, 8] == [mode["passes"][0]["output_tokens"] for mode in result["modes"].values()]
    assert result["engines"]["vllm"]["dtype"] == result["engines"]["transformers"]["dtype"] == "bfloat16"
    assert {"2"} == set(result["batch_trials_output_tokens_per_s"])
    assert result["greedy_agreement"]["vllm_and_transformers"]["first_token"] >= 0.5
    assert "vllm" in done.stdout
    assert not psutil.Process().children(recursive=True)
    assert [] == [path for path in temporary.rglob("*") if path.is_socket()]
