"""`python -m loadtest` as people run it: real Locust against the simulator and the fault server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.simulation.options import SimulatorOptions
from loadtest.servers.simulator import serving
from loadtest.servers.steps import Script

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

CLOSED_PORT = "http://127.0.0.1:9"


async def loadtest(url: str, results: Path, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Runs it with every proxy variable pointing nowhere; returns exit code, JSON result, table."""
    environ = {**os.environ, **dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY", "HTTPS_PROXY"), CLOSED_PORT)}
    file = results / "result.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadtest",
        *("--target", url, "--results", str(results), "--json", str(file), *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environ,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, json.loads(file.read_text()) if file.exists() else {}, output.decode()


def balanced(result: dict[str, Any]) -> bool:
    """The books, and Locust's own totals, agree."""
    settings = result["settings"]
    return bool(
        result["scheduled"] == result["ok"] + result["failed"] + result["unsent"]
        and settings["locust_requests"] == result["ok"] + result["failed"]
        and len(result["requests"]) == result["scheduled"]
        and settings["locust_failures"] == result["failed"]
    )


async def test_a_run_against_the_simulator_loses_no_stream_and_agrees_with_it(tmp_path: Path) -> None:
    """Every request the worker began is in the books, tokens equal the worker's own count, and the table shows it."""
    options = SimulatorOptions(names=("m",), itl_ms=2, prompt_tokens_details=True)
    async with serving(options) as simulator:
        code, result, output = await loadtest(
            simulator.url, tmp_path, "--users", "4", "--duration", "1s", "--max-tokens", "20", "--ignore-eos"
        )
        counts = simulator.engine.counts
        assert simulator.worker.in_flight == 0

    assert code == 0, output
    assert balanced(result)
    assert result["ok"] == result["scheduled"] == sum(counts.success.values()) > 4
    assert result["output_tokens"] == counts.generation_tokens == 20 * result["ok"]
    assert result["prompt_tokens"] == counts.prompt_tokens
    assert result["summary"]["tpot"]["p50"] >= 0.002
    assert "time to first token" in output
    assert f"scheduled {result['scheduled']} = ok {result['ok']} + failed 0 + unsent 0" in output
    assert [name[:5] for name in os.listdir(tmp_path) if name != "result.json"] == ["chat-"]


@pytest.mark.parametrize("attempt", range(3))
async def test_streams_longer_than_the_run_are_waited_for(tmp_path: Path, attempt: int) -> None:
    """The run ends while every stream is in flight; all of them finish and are counted."""
    async with serving(SimulatorOptions(names=("m",), itl_ms=10)) as simulator:
        code, result, output = await loadtest(
            simulator.url, tmp_path, "--users", "3", "--duration", "0.4s", "--max-tokens", "120", "--ignore-eos"
        )

    assert code == 0, output
    assert balanced(result)
    assert result["ok"] == result["scheduled"] == 3
    assert result["failed"] == 0


async def test_streams_that_never_end_are_cut_and_counted(tmp_path: Path) -> None:
    """After the time to finish, what still runs is a failure, not a silence."""
    models = scripts.models_json()

    def answer(request: RecordedRequest) -> Script:
        return models if request.method == "GET" else scripts.never_answers()

    async with FaultServer(answer) as server:
        flags = ("--users", "2", "--duration", "0.3s", "--drain", "0.5s")
        code, result, output = await loadtest(server.url, tmp_path, *flags)

    assert code == 1, output
    assert balanced(result)
    assert result["scheduled"] == 2
    assert result["failures"] == {"cut_at_end": 2}


async def test_failures_are_named_counted_and_decide_the_exit_code(tmp_path: Path) -> None:
    """One in three is an in-band error: exit 1 at the default threshold, 0 when half may fail."""
    models, error, good = scripts.models_json(), scripts.in_band_error(), scripts.chat_stream()

    def answer(request: RecordedRequest) -> Script:
        if request.method == "GET":
            return models
        return error if request.index % 3 == 0 else (*good,)

    async with FaultServer(answer) as server:
        strict = await loadtest(server.url, tmp_path, "--users", "1", "--duration", "0.5s")
    async with FaultServer(answer) as server:
        flags = ("--users", "1", "--duration", "0.5s", "--max-failures", "50")
        lenient = await loadtest(server.url, tmp_path, *flags)
        assert len(server.connections) == 2, "one to ask for the models, one for the user: it was not kept"

    assert (strict[0], lenient[0]) == (1, 0)
    assert balanced(strict[1])
    assert set(strict[1]["failures"]) == {"in_band_error"}
    assert "EngineCore encountered an issue" in strict[2]


async def test_an_interrupt_ends_the_run_early_and_loses_no_stream(tmp_path: Path) -> None:
    """Ctrl-C while a stream is held in the middle of a long run: it finishes, the table is printed."""
    models, events = scripts.models_json(), frames.ChatStream().events()
    held = scripts.stream(scripts.gated(events, {2: "hold"}))

    def answer(request: RecordedRequest) -> Script:
        return models if request.method == "GET" else held

    async with asyncio.timeout(30), FaultServer(answer) as server:
        flags = ("--users", "2", "--duration", "1h", "--results", str(tmp_path))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest", "--target", server.url, *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        await server.reached("hold")
        process.send_signal(signal.SIGINT)
        server.release("hold")
        output = (await process.communicate())[0].decode()
        sent = sum(request.method == "POST" for request in server.requests)

    assert process.returncode == 0, output
    assert f"scheduled {sent} = ok {sent} + failed 0 + unsent 0" in output


async def test_an_unknown_model_is_exit_code_2_naming_what_is_served(tmp_path: Path) -> None:
    """Before any load is sent."""
    async with FaultServer(scripts.models_json(["a", "b"])) as server:
        code, _, output = await loadtest(server.url, tmp_path, "--model", "c")
        requests = len(server.requests)

    assert (code, requests) == (2, 1)
    assert "found a, b" in output


async def test_a_result_that_cannot_be_stored_is_shown_all_the_same(tmp_path: Path) -> None:
    """A file where the folder should be: the table comes, then one sentence and exit code 2."""
    (tmp_path / "taken").write_text("")
    async with serving(SimulatorOptions(names=("m",), itl_ms=1)) as simulator:
        code, _, output = await loadtest(simulator.url, tmp_path / "taken", "--users", "1", "--duration", "0.5s")

    assert 2 == code, output
    assert "time to first token" in output
    assert "the result cannot be stored" in output.splitlines()[-1]
    assert "Traceback" not in output
