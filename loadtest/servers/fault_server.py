"""
A scripted HTTP server that misbehaves exactly as told and records what it saw.

In a test::

    async with FaultServer(scripts.chat_stream(), scripts.resets_at_once()) as server:
        ...                                   # first request: a whole answer; every later one: RST
        request = await server.request(0)     # waits until it has been received completely
        await request.closed.wait()           # the peer closed the connection (FIN or RST)

By hand: `python -m loadtest.servers.fault_server --script reset-mid-stream --port 9000`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from types import TracebackType

from loadtest.servers.fault_connection import Plan, RespondOn, ScriptedConnection
from loadtest.servers.recording import Connection, Journal, RecordedRequest
from loadtest.servers.scripts import NAMED
from loadtest.servers.steps import Script

Answer = Script | Callable[[RecordedRequest], Script]


class FaultServer:
    """
    Serves scripts on loopback TCP, or on a Unix socket when `uds` is given.

    The n-th request over all connections plays the n-th script; the last script repeats. A callable gets the request
    and returns its script. `on_connect` is played before any request (`(Reset(),)`: accept, then RST). `close_after`
    ends a kept-alive connection with FIN after that many answers. `respond_on` says when a script starts.
    `refuse=True` starts with the port bound but not listening: connections are refused until `listen()`.

    Leaving the context aborts every connection and raises the first error a script callable raised.
    """

    def __init__(
        self,
        *answers: Answer,
        host: str = "127.0.0.1",
        port: int = 0,
        uds: str | None = None,
        on_connect: Script = (),
        close_after: int | None = None,
        respond_on: RespondOn = "complete",
        refuse: bool = False,
    ) -> None:
        if not answers and not on_connect and not refuse:
            raise ValueError("expected at least one script, found none: pass e.g. scripts.chat_stream()")
        self.host, self.port, self.uds = host, port, uds
        self._answers = answers
        self._plan = Plan(self._script_for, on_connect, close_after, respond_on)
        self._refuse = refuse
        self._journal = Journal()
        self._reserved: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._living: set[ScriptedConnection] = set()

    async def __aenter__(self) -> FaultServer:
        self._reserve()
        if not self._refuse:
            await self.listen()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stop_listening()
        players = [connection.player for connection in self._living]
        for connection in list(self._living):
            connection.abort()
        for record in self.connections:
            await record.ended.wait()
        await asyncio.gather(*players, return_exceptions=True)
        if self.uds is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.uds)
        if exc is None and self._journal.errors:
            raise self._journal.errors[0]

    def _script_for(self, request: RecordedRequest) -> Script:
        if not self._answers:
            return ()
        chosen = self._answers[min(request.index, len(self._answers) - 1)]
        return chosen(request) if callable(chosen) else chosen

    def _reserve(self) -> None:
        """Binds without listening: the address is ours and the kernel refuses connections."""
        if self.uds is None:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            self.port = sock.getsockname()[1]
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.uds)
            sock.bind(self.uds)
        sock.setblocking(False)
        self._reserved = sock

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
        elif self._reserved is not None:
            self._reserved.close()
        self._server = self._reserved = None

    async def listen(self) -> None:
        """Starts accepting: at first, or again after `refuse()`, at the same address."""
        if self._server is not None:
            return
        assert self._reserved is not None, "listen() is for inside the context"
        loop = asyncio.get_running_loop()

        def connection() -> ScriptedConnection:
            return ScriptedConnection(self._journal, self._plan, self._living)

        self._server = await loop.create_server(connection, sock=self._reserved, backlog=1024)

    async def refuse(self) -> None:
        """Stops accepting and keeps the address bound: new connections are refused, open ones live on."""
        self._stop_listening()
        self._reserve()

    @property
    def url(self) -> str:
        """http://host:port (TCP only)."""
        return f"http://{self.host}:{self.port}"

    @property
    def requests(self) -> list[RecordedRequest]:
        """Every request, complete or not, in order of arrival."""
        return self._journal.requests

    @property
    def connections(self) -> list[Connection]:
        """Every connection ever accepted."""
        return self._journal.connections

    @property
    def open_connections(self) -> int:
        """Connections that are not gone yet."""
        return len(self._living)

    def release(self, name: str) -> None:
        """Opens a gate, for good: every script that waits there or comes there passes."""
        self._journal.open_gate(name)

    async def reached(self, name: str) -> None:
        """Waits until some script came to the gate or mark of that name."""
        await self._journal.marked(name)

    async def request(self, index: int) -> RecordedRequest:
        """The request with that number, once it has been received completely."""
        await self.until(lambda: len(self.requests) > index)
        await self.requests[index].complete.wait()
        return self.requests[index]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; looked at whenever a connection or request begins, grows or ends."""
        await self._journal.until(condition)

    async def idle(self) -> None:
        """Waits until no connection is left."""
        await self.until(lambda: not self._living)


async def _serve(server: FaultServer) -> None:
    async with server:
        print(f"listening on {server.uds or server.url}", flush=True)
        for number in itertools.count():
            request = await server.request(number)
            record = {"method": request.method, "target": request.target, "headers": request.headers}
            print(json.dumps({**record, "body": request.body.decode(errors="replace")}), flush=True)


def main(argv: Sequence[str]) -> int:
    """Serves one named script until interrupted; prints the address, then every request as a JSON line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.servers.fault_server", description=main.__doc__)
    parser.add_argument("--script", choices=sorted(NAMED), default="chat-stream", help="default: %(default)s")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free port, printed at the start")
    parser.add_argument("--uds", help="a Unix socket instead of host and port")
    parser.add_argument("--close-after", type=int, help="end a kept-alive connection after that many answers")
    options = parser.parse_args(argv)
    server = FaultServer(
        NAMED[options.script],
        host=options.host,
        port=options.port,
        uds=options.uds,
        close_after=options.close_after,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(server))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
