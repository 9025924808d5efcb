"""How a process that was replaced lets its clients go: asked to leave, never cut off while they ask."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.api import public_server
from gateway.api.public_server import PublicServer
from gateway.api.server_protocol import GatewayProtocol
from tests.proxy.raw_client import RawConnection, connect, request

pytestmark = pytest.mark.anyio

GET = request("GET", "/")


class Server:
    """A public server whose application answers `/slow` only when the test says so."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.listening = asyncio.Event()
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http=GatewayProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self.server = PublicServer(config, self.listening.set)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            self.asked.set()
            await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """It serves when the block begins and has ended after it."""
    found = Server()
    running = asyncio.create_task(found.server.serve(sockets=[found.listener]))
    await found.listening.wait()
    try:
        yield found
    finally:
        found.server.end()
        found.may_answer.set()
        await running


async def used(connection: RawConnection) -> None:
    """One request, answered: the connection is kept."""
    connection.send(GET)
    answer = await connection.answer()
    assert answer.header("connection") is None


async def test_a_kept_connection_is_served_once_more_and_asked_to_leave() -> None:
    """The hand-over waits for it, and is over when the client has had its answer."""
    async with asyncio.timeout(30), serving() as served, connect(served.port) as client:
        await used(client)
        leaving = asyncio.create_task(served.server.hand_over())
        await asyncio.sleep(0)
        client.send(GET)
        answer = await client.answer()

        assert (200, "close") == (answer.status, answer.header("connection"))
        assert await client.at_end()
        await leaving


async def test_it_ends_at_once_and_not_when_it_next_looks_at_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_server, "DATE_EVERY_S", 3600.0)
    async with asyncio.timeout(30), serving() as served, connect(served.port) as client:
        await used(client)


async def test_its_date_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn makes the header anew at tick 0 and every tenth: each tick is one of these."""
    ticks: asyncio.Queue[int] = asyncio.Queue()

    async def tick(server: uvicorn.Server, counter: int) -> bool:
        ticks.put_nowait(counter)
        return await uvicorn.Server.on_tick(server, counter)

    monkeypatch.setattr(public_server, "DATE_EVERY_S", 0.001)
    monkeypatch.setattr(PublicServer, "on_tick", tick)
    async with asyncio.timeout(30), serving() as served:
        assert [0, 0, 0] == [await ticks.get() for _ in range(3)]
        assert served.server.server_state.default_headers[0][0] == b"date"


async def test_nobody_new_is_accepted() -> None:
    """The socket may be somebody else's too, so it is closed here and not shut down."""
    async with asyncio.timeout(30), serving() as served:
        other = served.listener.dup()
        await served.server.hand_over()
        with other, socket.create_connection(("127.0.0.1", served.port), timeout=5):
            other.setblocking(False)
            accepted, _ = other.accept()
            accepted.close()


async def test_only_connections_on_which_nothing_is_asked_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four, with no patience at all: the idle one is closed; one that is being answered and one whose request is
    half here are served to their end."""
    monkeypatch.setattr(public_server, "IDLE_S", 0.0)
    monkeypatch.setattr(public_server, "LOOK_S", 0.01)
    async with (
        asyncio.timeout(30),
        serving() as served,
        connect(served.port) as idle,
        connect(served.port) as fresh,
        connect(served.port) as slow,
        connect(served.port) as half,
    ):
        for client in (idle, half):
            await used(client)
        half.send(GET[:10])
        slow.send(request("GET", "/slow"))
        await served.asked.wait()
        leaving = asyncio.create_task(served.server.hand_over())

        assert await idle.at_end()
        assert await fresh.at_end()
        assert not leaving.done()

        half.send(GET[10:])
        late = await half.answer()
        served.may_answer.set()
        slowest = await slow.answer()
        await leaving

        assert [(200, b"ok")] * 2 == [(answer.status, answer.body) for answer in (late, slowest)]


async def test_what_has_arrived_is_never_closed_upon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that lies in the socket, unread yet, when its idle connection would be closed, is answered."""
    monkeypatch.setattr(public_server, "IDLE_S", 0.0)
    monkeypatch.setattr(public_server, "LOOK_S", 0.01)
    looks = 0
    looked = public_server._readable

    def readable(transport: asyncio.Transport) -> bool:
        nonlocal looks
        looks += 1
        return looked(transport)

    monkeypatch.setattr(public_server, "_readable", readable)
    async with asyncio.timeout(30), serving() as served, connect(served.port) as client:
        await used(client)
        (connection,) = served.server.server_state.connections
        connection.transport.pause_reading()
        client.send(GET)
        leaving = asyncio.create_task(served.server.hand_over())
        while looks < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        connection.transport.resume_reading()
        answer = await client.answer()
        await leaving

        assert 200 == answer.status
