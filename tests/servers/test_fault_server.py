"""The fault server: bytes as scripted, everything recorded, closing seen at once."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import LAST_CHUNK, chunk
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Fin, Flood, Gate, HalfClose, Reset, Script, Send, Stall

pytestmark = pytest.mark.anyio

POST = b'POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a\r\nX-Odd:  B \r\nContent-Length: 13\r\n\r\n{"model":"m"}'
HELLO = (Send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"),)


@asynccontextmanager
async def connect(server: FaultServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw client connection that is gone afterwards."""
    path = server.uds
    reader, writer = await (asyncio.open_unix_connection(path) if path else open_tcp(server))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def open_tcp(server: FaultServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def test_it_sends_the_script_and_records_the_request_as_received() -> None:
    """Raw bytes, order, case and body of the request are kept; the script's bytes arrive unchanged."""
    async with asyncio.timeout(10), FaultServer(HELLO) as server, connect(server) as (reader, writer):
        writer.write(POST)
        received = await reader.readexactly(len(HELLO[0].data))
        request = await server.request(0)

        assert HELLO[0].data == received
        assert request.raw == POST
        assert (
            request.method,
            request.path,
            request.http.framing,
        ) == ("POST", "/v1/chat/completions", "content-length")
        assert request.headers == [("Host", "a"), ("X-Odd", "B"), ("Content-Length", "13")]
        assert request.json() == {"model": "m"}
        assert not request.closed.is_set()


async def test_scripts_are_played_in_order_of_requests_and_the_last_repeats() -> None:
    """Over one kept-alive connection with pipelined requests."""
    first, rest = scripts.raw(b"HTTP/1.1 204 First\r\n\r\n"), scripts.raw(b"HTTP/1.1 204 Rest\r\n\r\n")
    async with asyncio.timeout(10), FaultServer(first, rest) as server, connect(server) as (reader, writer):
        writer.write(POST * 3)
        expected = first[0].data + rest[0].data * 2  # type: ignore[union-attr]

        assert expected == await reader.readexactly(len(expected))
        assert len(server.connections) == 1
        assert len(server.requests) == 3


async def test_a_chunked_request_keeps_its_chunk_sizes() -> None:
    """Chunk extensions and trailers are framing, not body."""
    body = b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: v\r\n\r\n"
    async with asyncio.timeout(10), FaultServer(HELLO) as server, connect(server) as (_, writer):
        for byte in b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body:
            writer.write(bytes([byte]))
        request = await server.request(0)

        assert (request.body, request.http.chunk_sizes) == (b"abcde", [3, 2])


@pytest.mark.parametrize(("how", "expected"), [("close", "fin"), ("abort", "reset")])
async def test_the_peers_close_is_seen_while_the_script_stalls(how: str, expected: str) -> None:
    """A relay's duty to close the upstream socket can be asserted at the moment it happens."""
    async with asyncio.timeout(10), FaultServer((Stall(),)) as server, connect(server) as (_, writer):
        writer.write(POST)
        request = await server.request(0)
        assert not request.closed.is_set()
        if how == "abort":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()
        await request.closed.wait()

        assert expected == request.closed_how
        await server.idle()


async def test_reset_after_bytes_is_a_reset_for_the_peer() -> None:
    """The peer gets every byte sent before, then ECONNRESET, never a proper end."""
    sent = frames.ChatStream().events()[:2]
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream([*sent, Gate("cut")], end=Reset())) as server,
        connect(server) as (reader, writer),
    ):
        writer.write(POST)
        expected = b"".join(map(chunk, sent))
        assert (await reader.readuntil(expected)).endswith(expected)
        server.release("cut")

        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert not (await server.request(0)).closed.is_set(), "the server closed, not the peer"
        writer.transport.abort()


async def test_fin_without_the_last_chunk_and_half_close() -> None:
    """Fin ends the connection; HalfClose ends only the sending side and keeps recording."""
    cut = scripts.stream(frames.ChatStream().events()[:2], end=Fin())
    async with asyncio.timeout(10), FaultServer(cut, (*HELLO, HalfClose(), Stall())) as server:
        async with connect(server) as (reader, writer):
            writer.write(POST)
            assert not (await reader.read()).endswith(LAST_CHUNK)

        async with connect(server) as (reader, writer):
            writer.write(POST)
            assert HELLO[0].data == await reader.read()
            writer.write(b"late bytes")
            await server.until(lambda: server.connections[1].received.endswith(b"late bytes"))


async def test_gates_order_the_script_and_the_test() -> None:
    """Nothing after a gate leaves before the test opens it."""
    events = frames.ChatStream().events()
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(scripts.gated(events, {2: "hold"}))) as server,
        connect(server) as (reader, writer),
    ):
        writer.write(POST)
        await server.reached("hold")
        before = b"".join(map(chunk, events[:2]))
        assert (await reader.readuntil(before)).endswith(before)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await reader.read(1)
        server.release("hold")

        rest = b"".join(map(chunk, events[2:])) + LAST_CHUNK
        assert rest == await reader.readexactly(len(rest))


async def test_flood_counts_what_the_peer_made_room_for() -> None:
    """A peer that does not read bounds what the server could send."""
    total = 64 << 20
    async with (
        asyncio.timeout(20),
        FaultServer((Flood(b"x" * 65536, total),)) as server,
        connect(server) as (reader, writer),
    ):
        writer.write(POST)
        request = await server.request(0)
        await reader.readexactly(65536)

        assert request.sent < total
        writer.transport.abort()
        await server.idle()
        assert request.sent < total


async def test_refuse_and_listen_again_on_the_same_port() -> None:
    """Connections are refused while the port stays reserved."""
    async with asyncio.timeout(10), FaultServer(HELLO, refuse=True) as server:
        with pytest.raises(ConnectionRefusedError):
            await open_tcp(server)
        await server.listen()
        async with connect(server):
            await server.refuse()
            with pytest.raises(ConnectionRefusedError):
                await open_tcp(server)


async def test_close_after_and_on_connect() -> None:
    """Keep-alive ends after N answers; a connection may be reset before any request."""
    async with asyncio.timeout(10), FaultServer(HELLO, close_after=1) as server, connect(server) as (reader, writer):
        writer.write(POST + POST)
        assert HELLO[0].data == await reader.read()
    async with asyncio.timeout(10), FaultServer(on_connect=(Reset(),)) as server, connect(server) as (reader, writer):
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.transport.abort()


async def test_respond_on_head_answers_before_the_body() -> None:
    """An early 413 can be scripted while the body is still being sent."""
    async with (
        asyncio.timeout(10),
        FaultServer(HELLO, respond_on="head") as server,
        connect(server) as (reader, writer),
    ):
        writer.write(POST[:-5])
        assert HELLO[0].data == await reader.readexactly(len(HELLO[0].data))
        assert not server.requests[0].complete.is_set()
        writer.write(POST[-5:])
        await server.request(0)


async def test_an_error_in_a_script_callable_is_raised_at_the_end() -> None:
    """A broken test cannot pass by accident."""

    def broken(request: RecordedRequest) -> Script:
        raise LookupError(request.path)

    async def use() -> None:
        async with FaultServer(broken) as server, connect(server) as (reader, writer):
            writer.write(POST)
            with pytest.raises(ConnectionResetError):
                await reader.read()

    with pytest.raises(LookupError):
        await asyncio.wait_for(use(), 10)


async def test_it_serves_a_unix_socket(tmp_path: Path) -> None:
    """The same over a Unix socket, whose file is removed afterwards."""
    path = tmp_path / "s"
    async with asyncio.timeout(10), FaultServer(HELLO, uds=str(path)) as server, connect(server) as (reader, writer):
        writer.write(POST)
        assert HELLO[0].data == await reader.readexactly(len(HELLO[0].data))
        assert server.open_connections == 1
    assert not path.exists()
