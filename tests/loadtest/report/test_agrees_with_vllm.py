"""Our re-scoring and vLLM's own benchmark code say the same of the same raw log, to 0.1 %."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.setup.builds import suitable_build
from gateway.setup.directories import directories
from gateway.setup.engine import built_engine
from gateway.setup.facts import gather_facts
from loadtest.report.folder import RAW_LOG
from loadtest.report.raw_log import read_raw_log, write_raw_log
from loadtest.report.rescore import PERCENTILES, Spread, VllmScore, rescore
from tests.loadtest.report.invented import invented_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("score_with_vllm.py")
WITHIN = 0.001


@pytest.fixture(scope="module")
def engine_python() -> Path:
    """The interpreter that has vLLM."""
    if own := os.environ.get("GATEWAY_ENGINE_PYTHON"):
        return Path(own)
    cache = directories(os.environ).cache
    build = suitable_build("auto", gather_facts(os.environ, cache=cache, ports=()))
    engine = None if build is None else built_engine(build, cache)
    if engine is None:
        pytest.skip("no engine environment: make engine")
    return engine.python


@pytest.fixture(scope="module")
def measured_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The raw log of a real run against a server whose answers end in every way."""
    command = [
        *(sys.executable, "-m", "loadtest.servers.golden_server", "--ttft-ms", "40", "--gap-ms", "10"),
        *("--tokens", "12", "--ends", "ok", "ok", "in_band_error", "clean_truncation", "reset", "tokenless", "abort"),
    ]
    results = tmp_path_factory.mktemp("results")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            subprocess.run(
                [
                    *(sys.executable, "-m", "loadtest", "chat", "--target", url, "--users", "4", "--duration", "3s"),
                    *("--warmup", "0", "--assume-lengths", "--calibrate", "never", "--results", str(results)),
                ],
                check=False,  # failures are what this server is for
                stdout=subprocess.DEVNULL,
            )
            yield next(results.glob(f"*/{RAW_LOG}"))
        finally:
            server.kill()


def test_both_say_the_same_to_a_tenth_of_a_percent(engine_python: Path, measured_log: Path, tmp_path: Path) -> None:
    """Every figure of vLLM's table, over a measured log with failures of all kinds and over a long invented one."""
    invented = tmp_path / "invented.jsonl"
    with invented.open("w", encoding="utf-8") as file:
        write_raw_log(file, invented_run(seconds=60).ledger.records)
    logs = (measured_log, invented)
    scored = subprocess.run(
        [str(engine_python), str(SCRIPT), *map(str, logs)], check=True, capture_output=True, text=True, timeout=300
    ).stdout.splitlines()
    theirs = [json.loads(line.removeprefix("SCORE ")) for line in scored if line.startswith("SCORE ")]
    ours = [rescore(read_raw_log(log)) for log in logs]

    assert 2 == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine is not None
        assert mine.failed > 0
        assert pytest.approx(_theirs(other), rel=WITHIN) == _ours(mine)


def _ours(score: VllmScore) -> dict[str, float]:
    spreads = {"ttft": score.ttft_ms, "tpot": score.tpot_ms, "itl": score.itl_ms, "e2el": score.e2el_ms}
    counts = ("completed", "failed", "total_input", "total_output", "request_throughput", "output_throughput")
    more = ("total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests")
    found = {name: float(getattr(score, name)) for name in (*counts, *more)}
    return found | {key: value for name, spread in spreads.items() for key, value in _spread(name, spread).items()}


def _spread(name: str, spread: Spread) -> Mapping[str, float]:
    plain = {f"mean_{name}_ms": spread.mean, f"median_{name}_ms": spread.median, f"std_{name}_ms": spread.std}
    return plain | {f"p{p:g}_{name}_ms": spread.percentiles[p] for p in PERCENTILES}


def _theirs(metrics: dict[str, Any]) -> dict[str, float]:
    found = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    for name in ("ttft", "tpot", "itl", "e2el"):
        found |= {f"p{p:g}_{name}_ms": value for p, value in metrics[f"percentiles_{name}_ms"]}
    for name in ("rtfx", "request_goodput"):  # audio, and a goodput that was not asked for
        del found[name]
    return found
