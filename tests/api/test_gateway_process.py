"""A real gateway process, led through its control channel as the supervisor would."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.config.settings import Settings
from gateway.fleet import InFlightBoard
from gateway.messages import (
    Configure,
    Drain,
    Hello,
    LoadReport,
    Snapshot,
    ToGateway,
    decode_to_supervisor,
    encode,
)
from gateway.metrics import Board, Layout
from gateway.metrics.catalogue import IN_FLIGHT, REQUESTS
from gateway.setup.compiled import compiled_folder, compiled_key
from gateway.setup.completion import finished
from gateway.types import FleetSnapshot, ModelView, WorkerAddress, WorkerState, WorkerView
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Gate, Stall
from tests.proxy.raw_client import CHAT, ask, chat, connect, post, request

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

Said = TypeVar("Said", Hello, LoadReport)
EVENTS = frames.ChatStream().events(usage=False)


@dataclass
class Process:
    """A gateway process under test; `channel` is the supervisor's end."""

    port: int
    process: asyncio.subprocess.Process
    board: Board
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    view: WorkerView
    hello: Hello | None = None

    def tell(self, message: ToGateway) -> None:
        self.writer.write(encode(message))

    async def heard(self, kind: type[Said]) -> Said:
        """The next message of a kind that the process sends."""
        while True:
            message = decode_to_supervisor((await self.reader.readline())[:-1])
            if isinstance(message, kind):
                return message

    def ended(self) -> dict[str, int]:
        """Requests that are counted as ended, by outcome; none may be in flight still."""
        cells, layout = self.board.cells, self.board.layout
        assert 0 == sum(cells[cell] for cell in layout.offsets(IN_FLIGHT).values())
        return {outcome: int(cells[cell]) for (*_, outcome), cell in layout.offsets(REQUESTS).items() if cells[cell]}

    def inform(self) -> None:
        """The first snapshot: one worker, READY."""
        self.tell(Snapshot(fleet=FleetSnapshot(1, (ModelView("sim", (), 1),), (self.view,))))


@asynccontextmanager
async def gateway_process(
    worker: FaultServer, *options: str, drain_timeout_s: float = 20, informed: bool = True
) -> AsyncIterator[Process]:
    """A process that serves model `sim` from `worker` once it is informed; killed at the end if it still lives."""
    settings = Settings.model_validate(
        {
            "models": {"sim": {"workers": [{"url": worker.url}]}},
            "drain_timeout_s": drain_timeout_s,
            "logging": {"format": "json"},
        }
    )
    workers = (("sim", "sim-static-0"),)
    board = Board.create(Layout(("sim",), workers))
    in_flight = InFlightBoard.create()
    listener = socket.create_server(("127.0.0.1", 0))
    ours, theirs = socket.socketpair()
    fds = (listener.fileno(), theirs.fileno(), board.fd, in_flight.fd)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.data_plane", *options),
        *("--listen-fd", str(fds[0]), "--control-fd", str(fds[1])),
        *("--metrics-fd", str(fds[2]), "--in-flight-fd", str(fds[3])),
        pass_fds=fds,
    )
    theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    address = WorkerAddress(host=worker.host, port=worker.port)
    view = WorkerView("sim-static-0", "sim", WorkerState.READY, "1", address, 0.0)
    running = Process(listener.getsockname()[1], process, board, reader, writer, view)
    listener.close()
    try:
        running.tell(
            Configure(
                settings_json=settings.model_dump_json(),
                slot=0,
                keys_file="",
                workers=workers,
                row=in_flight.open_row(),
            )
        )
        if informed:
            running.inform()
            running.hello = await running.heard(Hello)
            assert running.hello.pid == process.pid
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        writer.transport.abort()
        board.close()
        in_flight.close()


async def test_it_serves_and_counts() -> None:
    """Settings, snapshot, requests; what was counted is readable by the supervisor."""
    async with asyncio.timeout(60), FaultServer(scripts.chat_stream()) as worker, gateway_process(worker) as running:
        answer = await ask(running.port, post(CHAT, chat()))
        assert answer.body.endswith(frames.DONE)
        assert (await ask(running.port, request("GET", "/ready"))).status == 200
        assert sum(running.board.cells[1:]) > 0


@pytest.mark.parametrize("options", [(), ("--interpreted",)], ids=["as built", "interpreted"])
async def test_it_says_whether_it_runs_what_was_compiled(options: tuple[str, ...]) -> None:
    """Compiled modules where they have been built, unless it was told to run the sources; both serve."""
    async with (
        asyncio.timeout(60),
        FaultServer(scripts.chat_stream()) as worker,
        gateway_process(worker, *options) as running,
    ):
        answer = await ask(running.port, post(CHAT, chat()))
        mapped = await asyncio.to_thread(Path(f"/proc/{running.process.pid}/maps").read_text, encoding="utf-8")
        built = finished(compiled_folder(compiled_key(), Path(sys.prefix)), compiled_key()) is not None

        assert answer.body.endswith(frames.DONE)
        assert running.hello is not None
        assert (built and not options) == running.hello.compiled
        assert running.hello.compiled == ("__mypyc" in mapped and compiled_key() in mapped)


async def test_clients_wait_for_the_first_snapshot() -> None:
    """A process that does not know the fleet yet would call every model unknown: it takes nobody before it does."""
    async with (
        asyncio.timeout(60),
        FaultServer(scripts.chat_stream()) as worker,
        gateway_process(worker, informed=False) as running,
        connect(running.port) as client,
    ):
        client.send(post(CHAT, chat()))
        await running.heard(LoadReport)  # it follows the channel, and could serve
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.head(), 0.3)
        running.inform()
        answer = await client.answer()

        assert 200 == answer.status
        assert answer.body.endswith(frames.DONE)


@pytest.mark.parametrize("how", ["drain", "sigterm", "channel-end"])
async def test_a_drain_finishes_streams_and_refuses_new_work(how: str) -> None:
    """The running stream ends properly, nobody new is served, the process exits with success."""
    script = scripts.stream([*EVENTS[:2], Gate("rest"), *EVENTS[2:]])
    async with asyncio.timeout(60), FaultServer(script) as worker, gateway_process(worker) as running:
        async with connect(running.port) as client:
            client.send(post(CHAT, chat()))
            answer = await client.head()
            await client.chunk(answer)
            if how == "drain":
                running.tell(Drain(deadline_s=20))
            elif how == "sigterm":
                os.kill(running.process.pid, signal.SIGTERM)
            else:
                running.writer.close()
            await _refuses(running.port)
            worker.release("rest")
            await client.rest(answer)
            assert answer.complete
            assert b"".join(EVENTS) == answer.body
            assert await client.at_end()
        assert await running.process.wait() == 0
        assert {"ok": 1} == running.ended()


@pytest.mark.parametrize("how", ["deadline", "second-signal"])
async def test_a_stream_that_outlasts_the_drain_is_told(how: str) -> None:
    """An error event, not a cut and not a proper end; the worker's connection is closed; exit code 0."""
    script = scripts.stream(EVENTS[:2], end=Stall())
    async with asyncio.timeout(60), FaultServer(script) as worker, gateway_process(worker) as running:
        async with connect(running.port) as client:
            client.send(post(CHAT, chat()))
            answer = await client.head()
            while len(answer.events) < 2:
                await client.chunk(answer)
            if how == "deadline":
                running.tell(Drain(deadline_s=0.3))
            else:
                os.kill(running.process.pid, signal.SIGTERM)
                await _refuses(running.port)
                os.kill(running.process.pid, signal.SIGTERM)
            await client.rest(answer)
            assert answer.complete
            assert EVENTS[:2] == answer.events[:2]
            assert b"shutting_down" in answer.events[-1]
        await worker.requests[0].closed.wait()
        assert await running.process.wait() == 0
        assert {"shutdown": 1} == running.ended()


@pytest.mark.parametrize("module", ["gateway.data_plane", "gateway.app"])
async def test_without_a_supervisor_it_says_so(module: str) -> None:
    """Started by hand it explains itself and exits; by either name, of which older supervisors know the second."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        *("--listen-fd", "0", "--control-fd", "0", "--metrics-fd", "0", "--in-flight-fd", "0"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, stderr = await process.communicate()

    assert process.returncode == 7
    assert b"gateway up" in stderr


async def _refuses(port: int) -> None:
    """Wait until nobody listens any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return
        writer.transport.abort()
        await asyncio.sleep(0.02)
