"""
A vLLM worker without an engine: same command line, start-up log, routes, frames, metrics, signals and exit codes.

`python -m loadtest.servers.simulator --model M --served-model-name NAME --port P`, or in a test::

    async with serving(SimulatorOptions(names=("m",))) as simulator:
        simulator.url                          # http://127.0.0.1:PORT, ready at once, no child process
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from loadtest.servers.simulation.core import CoreProcess, InProcessCore
from loadtest.servers.simulation.engine import Engine
from loadtest.servers.simulation.http_server import HttpConnection, HttpSite
from loadtest.servers.simulation.options import SimulatorOptions, parse_options
from loadtest.servers.simulation.startup import FAILURES, STAMP, LogLine, failure_lines, startup_lines
from loadtest.servers.simulation.worker import Worker


class Simulator:
    """A worker that serves: its parts, its address, and its life from listening to the end."""

    def __init__(self, options: SimulatorOptions, core: CoreProcess | InProcessCore, sock: socket.socket) -> None:
        self.options, self.core = options, core
        self.engine = Engine(options, core)
        self.leaving: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolves to the exit code when the worker decides to leave by itself."""
        self.worker = Worker(options, self.engine, self.leave)
        self.site = HttpSite(self.worker.handle, options.keep_alive_s)
        self._socket = sock
        self._server: asyncio.Server | None = None
        self._stepping: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """http://host:port."""
        return f"http://{self.options.host}:{self.port}"

    def leave(self, code: int) -> None:
        """Ends the process with this code, by its own decision."""
        if not self.leaving.done():
            self.leaving.set_result(code)

    async def listen(self) -> None:
        """Accepts connections from now on and starts stepping."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: HttpConnection(self.site), sock=self._socket, backlog=2048)
        self._stepping = loop.create_task(self.engine.run())

    def stop_listening(self) -> None:
        """Refuses new connections and closes idle ones."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.site.connections):
            connection.close_if_idle()

    async def connections_closed(self) -> None:
        """Waits until no client is connected."""
        while self.site.connections:
            self.site.changed.clear()
            await self.site.changed.wait()

    async def close(self) -> None:
        """Ends everything at once."""
        self.stop_listening()
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.gather(self._stepping, return_exceptions=True)
        self.core.close()


@contextlib.asynccontextmanager
async def serving(options: SimulatorOptions) -> AsyncIterator[Simulator]:
    """A ready simulator in this event loop, on any free port unless the options name one, without a child process."""
    simulator = Simulator(options, InProcessCore(), bind(options))
    await simulator.listen()
    try:
        yield simulator
    finally:
        simulator.engine.abort_all()
        await simulator.close()
        for connection in list(simulator.site.connections):
            connection.abort()
        await simulator.connections_closed()


def bind(options: SimulatorOptions) -> socket.socket:
    """
    Takes the address without listening yet: connections are refused until the start is complete.

    Raises:
        OSError: the address is in use; a Unix socket file left behind counts, as with vLLM.
    """
    if options.uds:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(options.uds)
    else:
        sock = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((options.host, options.port))
    sock.setblocking(False)
    return sock


class Log:
    """Writes lines as vLLM's processes do: phases on stdout, uvicorn's and errors on stderr, each with its process."""

    def __init__(self, out: TextIO, err: TextIO, core_pid: int) -> None:
        self._out, self._err, self._core_pid = out, err, core_pid

    def write(self, line: LogLine) -> None:
        """One line, flushed."""
        pid = os.getpid() if line.process == "APIServer" else self._core_pid
        stream = self._out if line.stream == "out" else self._err
        text = line.text.replace(STAMP, time.strftime("%m-%d %H:%M:%S"), 1)
        stream.write(f"({line.process} pid={pid}) {text}" + ("" if line.text.endswith("\r") else "\n"))
        stream.flush()


class Process:
    """The life of a worker process: start, serve, stop as vLLM does."""

    def __init__(self, options: SimulatorOptions) -> None:
        self._options = options
        self._terminated = asyncio.Event()
        self._ready = False
        self._interrupted = False

    def _on_term(self) -> None:
        # During the start vLLM loses SIGTERM and serves later; so does this one.
        if self._ready and not self._options.ignore_term:
            self._terminated.set()

    def _on_interrupt(self) -> None:
        self._interrupted = True
        if self._ready:
            self._terminated.set()

    async def run(self) -> int:
        """From start to end; the result is the exit code (-2: die of SIGINT)."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_term)
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        options = self._options
        core = CoreProcess(options.orphan_s) if options.engine_process else InProcessCore()
        log = Log(sys.stdout, sys.stderr, core.pid)
        try:
            failure = FAILURES[options.fail_start] if options.fail_start and self._fails_this_time() else None
            try:
                sock = bind(options)
            except OSError:
                failure = FAILURES["port-in-use"]
            if failure is not None:
                await self._log_start(log, failure_lines(failure), failure.at)
                if failure.code is None:
                    await asyncio.Event().wait()
                return failure.code or 1
            if not options.uds:
                options = replace(options, port=sock.getsockname()[1])
            await self._log_start(log, [], 1.0, address=options.address)
            if self._interrupted:
                return -2
            simulator = Simulator(options, core, sock)
            await simulator.listen()
            self._ready = True
            log.write(LogLine(1.0, "INFO:     Application startup complete.", stream="err"))
            return await self._serve(simulator)
        finally:
            core.close()

    def _fails_this_time(self) -> bool:
        options = self._options
        if options.fail_times is None or options.counter_file is None:
            return True
        counter = Path(options.counter_file)
        starts = len(counter.read_bytes()) if counter.exists() else 0
        with counter.open("ab") as file:
            file.write(b".")
        return starts < options.fail_times

    async def _log_start(self, log: Log, extra: list[LogLine], end: float, address: str = "") -> None:
        """Paces the phases up to the fraction `end`, then writes the extra lines; "complete" is left to the caller."""
        options, loop = self._options, asyncio.get_running_loop()
        lines = startup_lines(
            options.model, options.names[0], address, options.kv_tokens, options.max_model_len, os.getpid()
        )
        began = loop.time()
        for line in [*(x for x in lines if x.at < end), *extra]:
            await asyncio.sleep(began + line.at * options.start_s - loop.time())
            log.write(line)
        await asyncio.sleep(began + end * options.start_s - loop.time())

    async def _serve(self, simulator: Simulator) -> int:
        loop = asyncio.get_running_loop()
        term = loop.create_task(self._terminated.wait())
        died = loop.create_task(simulator.core.died.wait())
        if (leave := self._options.exit_after_s) is not None:
            loop.call_later(leave.after, simulator.leave, leave.code)
        await asyncio.wait((term, died, simulator.leaving), return_when=asyncio.FIRST_COMPLETED)
        if simulator.leaving.done():
            return simulator.leaving.result()
        if died.done():
            return await self._engine_died(simulator)
        return await self._stop(simulator)

    async def _engine_died(self, simulator: Simulator) -> int:
        """Errors for what is in flight, /health 503 for a moment, then exit code 0, as measured."""
        simulator.worker.engine_dead = True
        simulator.engine.fail_all()
        if self._options.survive_engine_death:
            await self._terminated.wait()
            return 0
        await asyncio.sleep(self._options.teardown_s)
        simulator.stop_listening()
        return 0

    async def _stop(self, simulator: Simulator) -> int:
        options = self._options
        if options.shutdown_timeout_s > 0:
            simulator.worker.draining = True
            drained = await self._drain(simulator, options.shutdown_timeout_s)
            simulator.engine.hang()
            simulator.core.kill()
            simulator.stop_listening()
            if not drained:
                # Measured: the streams get no error and no end, and the process waits for its clients to leave.
                await simulator.connections_closed()
        else:
            simulator.stop_listening()
            simulator.engine.abort_all()
            simulator.core.kill()
            for connection in list(simulator.site.connections):
                connection.close_if_idle()
        await asyncio.sleep(options.teardown_s)
        return 0

    async def _drain(self, simulator: Simulator, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await simulator.worker.idle()
                return True
        return False


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs a worker to its end. Exit codes: 0 orderly, also after an engine death; 1 and 2 the start failed."""
    options = parse_options(argv, environ)

    async def run() -> int:
        return await Process(options).run()

    code = asyncio.run(run())
    if code == -2:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
