"""The simulated worker as a process: start, signals, deaths and exit codes as measured on vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.served import alive

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

LONG = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 8_000,
}


@dataclass(slots=True)
class Running:
    """A simulator in a session of its own, as a supervisor would start it, with its log so far."""

    process: asyncio.subprocess.Process
    output: asyncio.StreamReader
    log: list[str]

    async def line(self, pattern: str) -> re.Match[str]:
        """Reads the log until a line matches."""
        while line := (await self.output.readline()).decode():
            self.log.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"{pattern!r} not in the log: {self.log}")

    async def ready(self) -> str:
        """Waits for the start to complete; returns the base URL."""
        url = (await self.line(r"Starting vLLM server on (\S+)"))[1]
        await self.line("Application startup complete")
        return url

    @property
    def core_pid(self) -> int:
        """The pid of EngineCore, from the log."""
        return next(int(m[1]) for m in (re.search(r"EngineCore pid=(\d+)", line) for line in self.log) if m)


@contextlib.asynccontextmanager
async def running(*flags: str, start_s: str = "0.1") -> AsyncIterator[Running]:
    """Starts a simulator; afterwards nothing of its process group is left."""
    command = [sys.executable, "-m", "loadtest.servers.simulator", "--model", "m", "--port", "0"]
    # A pipe of our own: asyncio's would make wait() wait for orphans that hold it open.
    read_end, write_end = os.pipe()
    output = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", 0)
    )
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--sim-start-s", start_s, "--sim-teardown-s", "0.05", "--sim-orphan-s", "60"),
        *flags,
        stdout=write_end,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(write_end)
    try:
        async with asyncio.timeout(60):
            yield Running(process, output, [])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await output.read()
        await process.wait()
        transport.close()


@contextlib.asynccontextmanager
async def streaming(url: str) -> AsyncIterator[AsyncIterator[str]]:
    """A long stream whose first events have arrived."""
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=50) as client,
        client.stream("POST", "/v1/chat/completions", json=LONG) as answer,
    ):
        lines = answer.aiter_lines()
        assert "assistant" in await anext(lines)
        yield lines


async def test_the_start_logs_its_phases_in_order_and_refuses_connections_until_complete(tmp_path: Path) -> None:
    """A supervisor's progress bar and its "refused is not dead" rule can be tried."""
    path = str(tmp_path / "w.sock")
    async with running("--uds", path, start_s="1.5") as worker:
        await worker.line("Initializing a V1 LLM engine")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(path)
        await worker.line("Application startup complete")
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        await writer.wait_closed()
        phases = (
            "non-default args:",
            "Resolved architecture:",
            "Initializing a V1 LLM engine",
            "world_size=1 rank=0",
            "Starting to load model",
            "Loading weights took",
            "Available KV cache memory",
            "KV cache size:",
            "init engine (profile, create kv cache, warmup model) took",
            "Supported tasks:",
            "Starting vLLM server on",
        )
        text = "".join(worker.log)
        assert [text.find(p) for p in phases] == sorted(text.find(p) for p in phases)
        assert -1 not in [text.find(p) for p in phases]
        assert re.findall(r"shards:\s+(\d+)%", text) == ["0", "50", "100"]


async def test_sigterm_when_ready_ends_streams_with_abort_and_exit_code_0() -> None:
    """HTTP 200, finish_reason abort, [DONE]: what a relay must not take for success."""
    async with running() as worker:
        async with streaming(await worker.ready()) as lines:
            core = psutil.Process(worker.core_pid)
            worker.process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines if line]
        assert '"finish_reason":"abort"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert await worker.process.wait() == 0
        assert [] == alive([core])


async def test_sigterm_during_the_start_is_lost() -> None:
    """The worker serves later, as vLLM does; killing the group is the only way."""
    async with running(start_s="0.5") as worker:
        await worker.line("non-default args")
        worker.process.send_signal(signal.SIGTERM)
        await worker.ready()
        assert worker.process.returncode is None


async def test_sigint_during_the_start_ends_it_at_its_end_with_the_signal() -> None:
    """rc -2, after the engine has initialised."""
    async with running(start_s="0.3") as worker:
        await worker.line("non-default args")
        worker.process.send_signal(signal.SIGINT)
        await worker.line("Supported tasks")
        assert await worker.process.wait() == -signal.SIGINT


async def test_sigkill_leaves_an_orphaned_engine_in_the_group() -> None:
    """The orphan has to be found by its process group."""
    async with running() as worker:
        await worker.ready()
        worker.process.kill()
        assert await worker.process.wait() == -signal.SIGKILL
        orphan = psutil.Process(worker.core_pid)
        assert orphan.status() != psutil.STATUS_ZOMBIE
        assert os.getpgid(worker.core_pid) == worker.process.pid


async def test_death_of_the_engine_is_an_error_event_and_exit_code_0() -> None:
    """Exit code 0 does not mean stopped on purpose."""
    async with running() as worker:
        async with streaming(await worker.ready()) as lines:
            os.kill(worker.core_pid, signal.SIGKILL)
            rest = [line async for line in lines if line]
        assert '"message": "EngineCore encountered an issue.' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert await worker.process.wait() == 0


async def test_a_stopped_engine_hangs_requests_while_health_is_200() -> None:
    """The wedge that only a progress watchdog can see; SIGCONT heals it."""
    async with running() as worker:
        url = await worker.ready()
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=50) as client:
            os.kill(worker.core_pid, signal.SIGSTOP)
            body = {**LONG, "stream": False, "max_tokens": 2}
            pending = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            for _ in range(3):
                assert (await client.get("/health")).status_code == 200
            metrics = (await client.get("/metrics")).text
            assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in metrics
            assert not pending.done()
            os.kill(worker.core_pid, signal.SIGCONT)
            assert (await pending).status_code == 200


async def test_draining_refuses_new_work_with_500_and_hangs_at_its_deadline() -> None:
    """--shutdown-timeout: /health stays 200, new requests 500, then silence until the client leaves."""
    async with running("--shutdown-timeout", "2") as worker:
        url = await worker.ready()
        async with streaming(url) as lines, httpx.AsyncClient(base_url=url, trust_env=False, timeout=50) as client:
            await client.get("/health")
            worker.process.send_signal(signal.SIGTERM)
            while (refused := await client.post("/v1/chat/completions", json={**LONG, "max_tokens": 1})).is_success:
                pass
            assert refused.status_code == 500
            assert refused.json()["error"]["message"] == "cannot schedule new futures after shutdown"
            assert (await client.get("/health")).status_code == 200
            await client.aclose()
            ended = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    async for line in lines:
                        assert "[DONE]" not in line
                        assert "error" not in line
                    ended = True
            assert not ended
            assert worker.process.returncode is None
        assert await worker.process.wait() == 0


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        ("kv-memory", 1, "estimated maximum model length is 4096"),
        ("bad-flag", 2, "error: unrecognized arguments: --swap-space"),
        ("gpu-memory-busy", 1, "Free memory on device cuda:0"),
    ],
)
async def test_a_start_fails_as_told(failure: str, code: int, text: str) -> None:
    """The recorded text and exit code; engine failures end with vLLM's unhelpful tail."""
    async with running("--sim-fail-start", failure) as worker:
        await worker.line(re.escape(text))
        if failure != "bad-flag":
            await worker.line("Engine core initialization failed")
        assert await worker.process.wait() == code


async def test_a_port_in_use_is_exit_code_1_with_vllms_text() -> None:
    """Really in use, not scripted."""
    async with running() as first:
        port = (await first.ready()).rpartition(":")[2]
        async with running("--port", port) as second:
            await second.line("Address already in use")
            assert await second.process.wait() == 1


async def test_a_failing_start_can_heal_after_n_times(tmp_path: Path) -> None:
    """For restart and back-off tests."""
    flags = ("--sim-fail-start", "cuda-oom", "--sim-fail-times", "1", "--sim-counter", str(tmp_path / "n"))
    async with running(*flags) as first:
        await first.line("CUDA out of memory")
        assert await first.process.wait() == 1
    async with running(*flags) as second:
        await second.ready()


async def test_it_leaves_by_itself_and_ignores_term_when_told() -> None:
    """--sim-exit-code-after and --sim-ignore-term."""
    async with running("--sim-ignore-term", "--sim-exit-code-after", "7:0.3") as worker:
        await worker.ready()
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.process.wait() == 7


async def test_it_hangs_after_n_requests_when_told() -> None:
    """--sim-hang-after: request N + 1 never gets a token, HTTP stays alive."""
    async with running("--sim-hang-after", "1") as worker:
        url = await worker.ready()
        body = {**LONG, "stream": False, "max_tokens": 1}
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=50) as client:
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/chat/completions", json=body, timeout=0.3)
            assert (await client.get("/health")).status_code == 200


async def test_it_serves_a_unix_socket_and_a_left_behind_file_fails_the_next_start(tmp_path: Path) -> None:
    """As vLLM: the file stays, and the next bind fails."""
    path = str(tmp_path / "w.sock")
    async with running("--uds", path) as worker:
        await worker.line("Application startup complete")
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=50) as client:
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "m"
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.process.wait() == 0
    async with running("--uds", path) as second:
        await second.line("Address already in use")
        assert await second.process.wait() == 1
