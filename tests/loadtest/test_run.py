"""`python -m loadtest` as people run it: real Locust, with and without worker processes, against scripted servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtest.report.folder import read_result
from loadtest.result import RunResult
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.simulation.options import SimulatorOptions
from loadtest.servers.simulator import serving
from loadtest.servers.steps import Script

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

CLOSED_PORT = "http://127.0.0.1:9"
QUICK = ("--option", "output_tokens=20", "--assume-lengths", "--calibrate", "never")
PROCESSES = pytest.mark.parametrize("processes", [1, 2])
INVALID = 4
"""Also fine where figures do not matter: this machine may be busy."""


async def loadtest(url: str, results: Path, *flags: str) -> tuple[int, RunResult | None, str]:
    """Runs it with every proxy variable pointing nowhere; returns exit code, stored result, output."""
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY", "HTTPS_PROXY"), CLOSED_PORT)
    command = ("-m", "loadtest", "--target", url, "--results", str(results), *flags)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **proxies},
    )
    output, _ = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode is not None
    folders = [results / name for name in names_in(results) if name.startswith("chat-")]
    return process.returncode, read_result(folders[-1]) if folders else None, output.decode()


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def assert_balanced(result: RunResult | None) -> RunResult:
    """The books, their records and Locust's own totals agree."""
    assert result is not None
    ledger, settings = result.ledger, result.settings
    assert ledger.scheduled == ledger.ok + ledger.cancelled + ledger.failed + ledger.unsent == len(ledger.records)
    assert (0, ledger.sent, ledger.failed) == (
        ledger.in_flight,
        settings["locust_requests"],
        settings["locust_failures"],
    )
    assert len({record.request_id for record in ledger.records}) == ledger.scheduled
    assert result.timeline[-1].scheduled == ledger.scheduled
    return result


@PROCESSES
@pytest.mark.parametrize("load", [("--users", "4"), ("--rate", "20")], ids=["closed", "open"])
async def test_a_run_loses_no_stream_and_agrees_with_the_server(
    tmp_path: Path, processes: int, load: tuple[str, ...]
) -> None:
    """Every request the worker began is in the books, tokens equal its own count, the table and the files say so."""
    options = SimulatorOptions(names=("m",), itl_ms=2, prompt_tokens_details=True)
    flags = (*load, "--duration", "1s", "--processes", str(processes), *QUICK)
    async with serving(options) as simulator:
        code, stored, output = await loadtest(simulator.url, tmp_path, *flags)
        counts = simulator.engine.counts
        assert simulator.worker.in_flight == 0

    assert code in (0, INVALID), output
    result = assert_balanced(stored)
    ledger = result.ledger
    assert ledger.ok == ledger.scheduled == sum(counts.success.values()) >= 4
    assert ledger.output_tokens == counts.generation_tokens
    assert ledger.prompt_tokens == counts.prompt_tokens
    assert [sample.running >= 0 for sample in result.server][:1] == [True], "the server's own figures beside ours"
    assert f"scheduled {ledger.scheduled} = ok {ledger.ok} + failed 0 + unsent 0" in output
    assert {"report.html", "result.json", "requests.jsonl"} <= set(names_in(tmp_path / names_in(tmp_path)[0]))


@pytest.mark.parametrize("attempt", [*range(5), *(pytest.param(n, marks=pytest.mark.soak) for n in range(5, 20))])
async def test_streams_longer_than_the_run_are_waited_for(tmp_path: Path, attempt: int) -> None:
    """The run ends while every stream is in flight; all finish and are counted, in turns of 1 and 2 processes."""
    flags = ("--duration", "0.4s", "--processes", str(1 + attempt % 2), *QUICK, "--option", "output_tokens=120")
    load = ("--users", "3") if attempt % 5 < 3 else ("--rate", "30", "--arrivals", "constant")
    async with serving(SimulatorOptions(names=("m",), itl_ms=5)) as simulator:
        code, stored, output = await loadtest(simulator.url, tmp_path, *load, *flags)

    assert code in (0, INVALID), output
    ledger = assert_balanced(stored).ledger
    assert ledger.ok == ledger.scheduled
    assert ledger.scheduled >= 3 if attempt % 5 < 3 else ledger.scheduled == 12


@PROCESSES
async def test_streams_that_never_end_are_cut_and_counted(tmp_path: Path, processes: int) -> None:
    """After the time to finish, what still runs is a failure, not a silence; what was too much is unsent."""
    models = scripts.models_json()

    def answer(request: RecordedRequest) -> Script:
        return models if request.method == "GET" else scripts.never_answers()

    async with FaultServer(answer) as server:
        flags = ("--rate", "20", "--arrivals", "constant", "--duration", "0.5s", "--drain", "0.5s")
        limits = ("--max-in-flight", "4", "--processes", str(processes))
        code, stored, output = await loadtest(server.url, tmp_path, *flags, *limits, *QUICK)
        sent = sum(request.method == "POST" for request in server.requests)

    assert code in (1, INVALID), output
    ledger = assert_balanced(stored).ledger
    assert (ledger.scheduled, dict(ledger.failures), sent) == (10, {"cut_at_end": 4}, 4)
    assert dict(ledger.unsent_reasons) == {"in_flight_limit": 6}


async def test_failures_are_named_counted_and_decide_the_exit_code(tmp_path: Path) -> None:
    """One in three is an in-band error: exit 1 at the default threshold, 0 when half may fail."""
    models, error, good = scripts.models_json(), scripts.in_band_error(), scripts.chat_stream()

    def answer(request: RecordedRequest) -> Script:
        if request.method == "GET":
            return models
        # The model list is the first request. Of those that follow the second is the first to fail.
        return error if request.index % 3 == 2 else (*good,)

    flags = ("--users", "1", "--duration", "1.5s", *QUICK)
    async with FaultServer(answer) as server:
        strict = await loadtest(server.url, tmp_path / "strict", *flags)
    async with FaultServer(answer) as server:
        lenient = await loadtest(server.url, tmp_path / "lenient", *flags, "--max-failures", "50")
        posting = [c for c in server.connections if any(r.method == "POST" for r in c.requests)]
        assert len(posting) == 1, "the user's connection is kept"

    assert (strict[0], lenient[0]) in [(1, 0), (INVALID, INVALID), (1, INVALID), (INVALID, 0)]
    assert set(assert_balanced(strict[1]).ledger.failures) == {"in_band_error"}
    assert "EngineCore encountered an issue" in strict[2]


async def test_new_connections_for_every_request_where_that_is_asked(tmp_path: Path) -> None:
    """None is used twice."""
    models, good = scripts.models_json(), scripts.chat_stream()

    def answer(request: RecordedRequest) -> Script:
        return models if request.method == "GET" else (*good,)

    async with FaultServer(answer) as server:
        flags = ("--rate", "20", "--duration", "0.5s", "--connections", "new", *QUICK)
        _, stored, output = await loadtest(server.url, tmp_path, *flags)
        posts = [sum(r.method == "POST" for r in c.requests) for c in server.connections]

    ledger = assert_balanced(stored).ledger
    assert ledger.ok == sum(posts) > 1
    assert max(posts) == 1
    assert all(record.connect_s is not None for record in ledger.records)
    assert "connections: a new connection for every request" in output


async def test_a_missed_threshold_is_named_and_exits_1(tmp_path: Path) -> None:
    """The verdict on the server comes after the one on the client."""
    async with serving(SimulatorOptions(names=("m",), itl_ms=2)) as simulator:
        flags = ("--users", "1", "--duration", "0.5s", "--slo", "e2e_p50=1ms", "--slo", "ttft_p95=60s")
        code, _, output = await loadtest(simulator.url, tmp_path, *flags, *QUICK)

    assert code in (1, INVALID), output
    assert code == INVALID or "MISSED e2e_p50: expected at most 1 ms" in output
    assert "MISSED ttft" not in output


@PROCESSES
async def test_an_interrupt_ends_the_run_early_and_loses_no_stream(tmp_path: Path, processes: int) -> None:
    """Ctrl-C while a stream is held in the middle of a long run: it finishes, the table is printed."""
    models, events = scripts.models_json(), frames.ChatStream().events()
    held = scripts.stream(scripts.gated(events, {2: "hold"}))

    def answer(request: RecordedRequest) -> Script:
        return models if request.method == "GET" else held

    async with asyncio.timeout(100), FaultServer(answer) as server:
        flags = ("--users", "2", "--duration", "1h", "--processes", str(processes), "--results", str(tmp_path), *QUICK)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest", "--target", server.url, *flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        await server.reached("hold")
        process.send_signal(signal.SIGINT)
        server.release("hold")
        output = (await process.communicate())[0].decode()
        sent = sum(request.method == "POST" for request in server.requests)

    assert process.returncode in (0, INVALID), output
    assert f"scheduled {sent} = ok {sent} + failed 0 + unsent 0" in output


async def test_a_lost_load_process_is_exit_code_5_and_no_result(tmp_path: Path) -> None:
    """Books without its requests would be wrong."""
    models = scripts.models_json()

    def answer(request: RecordedRequest) -> Script:
        return models if request.method == "GET" else scripts.never_answers()

    async with asyncio.timeout(100), FaultServer(answer) as server:
        flags = ("--users", "2", "--duration", "1h", "--processes", "2", "--results", str(tmp_path), *QUICK)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest", "--target", server.url, *flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        await server.until(lambda: sum(request.method == "POST" for request in server.requests) == 2)
        os.kill(psutil.Process(process.pid).children()[0].pid, signal.SIGKILL)
        output = (await process.communicate())[0].decode()

    assert process.returncode == 5, output
    assert "ended with exit code -9 in the middle of the run" in output
    assert names_in(tmp_path) == []


async def test_the_client_is_calibrated_once_and_the_figure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run reads it from the cache folder; both results have it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = ("--users", "1", "--duration", "0.2s", *QUICK[:-2])
    async with serving(SimulatorOptions(names=("m",), itl_ms=1)) as simulator:
        first = await loadtest(simulator.url, tmp_path / "first", *flags)
        second = await loadtest(simulator.url, tmp_path / "second", *flags)

    assert first[1] is not None
    assert second[1] is not None
    assert ["this machine's client" in run[2] for run in (first, second)] == [True, False]
    ceilings = [run.settings["ceiling_per_process"] for run in (first[1], second[1])]
    assert ceilings[0] == ceilings[1] > 0
    assert second[1].health.ceiling_events_per_s == ceilings[0]


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
        flags = ("--users", "1", "--duration", "0.5s", *QUICK)
        code, _, output = await loadtest(simulator.url, tmp_path / "taken", *flags)

    assert 2 == code, output
    assert "ime to first token" in output
    assert "the result cannot be stored" in output.splitlines()[-1]
    assert "Traceback" not in output


async def test_the_result_on_standard_output_is_json_alone(tmp_path: Path) -> None:
    """For pipes: everything else goes to standard error."""
    async with serving(SimulatorOptions(names=("m",), itl_ms=1)) as simulator:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest", "--target", simulator.url, "--json", "-", "--users", "1"),
            *("--duration", "0.5s", "--results", str(tmp_path), *QUICK),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 100)
    value: dict[str, Any] = json.loads(output)

    assert value["settings"]["scenario"] == "chat"
    assert value["ledger"]["ok"] > 0
