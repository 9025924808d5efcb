"""`make demo`: the whole product over simulated workers, on a machine without any engine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.served import Served, alive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def test_the_demo_answers_without_an_engine_environment(tmp_path: Path) -> None:
    """An empty cache directory stays empty: nothing is installed, and the simulated model answers."""
    cache = tmp_path / "cache"
    demo = Path(__file__).parents[2] / "deploy/examples/demo.yaml"
    with Served(["-c", str(demo)], tmp_path / "state", environ={"GATEWAY_CACHE_DIR": str(cache)}) as served:
        served.wait_ready(within_s=60)
        (model, *_) = served.http.get(f"{served.base}/v1/models").raise_for_status().json()["data"]
        answer = served.http.post(
            f"{served.base}/v1/chat/completions",
            json={
                "model": model["id"],
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
            },
        ).raise_for_status()
        family = served.family()
        served.process.send_signal(signal.SIGTERM)

        assert served.ended(within_s=30) == 0, served.output
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
        assert [] == alive(family)
        assert not list(cache.glob("engines/*"))
