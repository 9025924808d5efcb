"""What the server's protocol class adds to uvicorn, and what it relies on in it."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.api.client_transport import ClientTransport
from gateway.api.server_protocol import GatewayProtocol
from gateway.proxy.direct import ChunkWriter
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.proxy import served
from tests.proxy.raw_client import CHAT, chat, connect, post, request
from tests.proxy.served import Served

pytestmark = pytest.mark.anyio

MALFORMED = {
    "garbage": b"hello\r\n\r\n",
    "te-and-cl": b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two-lengths": b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "unknown-coding": b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "bare-lf": b"POST %b HTTP/1.1\nhost: a\n\n",
    "space-before-colon": b"POST %b HTTP/1.1\r\nhost : a\r\ncontent-length: 0\r\n\r\n",
    "folded": b"POST %b HTTP/1.1\r\nhost: a\r\nx: 1\r\n 2\r\ncontent-length: 0\r\n\r\n",
    "bad-chunk-end": b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    "bad-chunk-size": b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "negative-length": b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    "nul-in-header": b"POST %b HTTP/1.1\r\nhost: a\r\nx: a\x00b\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_reach_nobody(name: str) -> None:
    """Refused and closed: a proxy and a server that read framing differently are how requests are smuggled."""
    template = MALFORMED[name]
    data = template.replace(b"%b", CHAT.encode())
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        served.gateway(worker) as running,
        connect(running.port) as client,
    ):
        client.send(data)
        answer = await client.answer()

        assert answer.status == (501 if name == "unknown-coding" else 400)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert await client.at_end()
        assert worker.connections == []


async def test_enormous_headers_are_refused(running: Served) -> None:
    """What is never a request is not collected for ever."""
    async with asyncio.timeout(10), connect(running.port) as client:
        client.send(b"GET /health HTTP/1.1\r\nx: ")
        for _ in range(20):
            client.send(b"y" * 10_000)
            await asyncio.sleep(0)
        answer = await client.answer()

        assert answer.status == 431


async def test_an_absolute_target_is_not_followed(running: Served) -> None:
    """The gateway is no forward proxy."""
    async with asyncio.timeout(10), connect(running.port) as client:
        client.send(b"GET http://127.0.0.1:9/ HTTP/1.1\r\nhost: a\r\n\r\n")

        assert (await client.answer()).status == 404


async def test_a_connection_serves_after_a_refused_body(running: Served) -> None:
    """A body that was not wanted is read and forgotten; the next request is served."""
    async with asyncio.timeout(10), connect(running.port) as client:
        client.send(post("/v1/nothing", b"x" * 500_000) + request("GET", "/health"))

        assert (await client.answer()).status == 404
        assert (await client.answer()).status == 200


async def test_an_upgrade_offer_is_ignored(running: Served) -> None:
    """Some HTTP clients offer h2c on every request: they are served over HTTP/1.1, body and all."""
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"}
    async with asyncio.timeout(10), connect(running.port) as client:
        client.send(post(CHAT, chat(stream=False), headers))

        assert (await client.answer()).status == 200


async def test_http_1_0_is_answered_and_closed(running: Served) -> None:
    """No keep-alive without being asked."""
    async with asyncio.timeout(10), connect(running.port) as client:
        client.send(b"GET /health HTTP/1.0\r\nhost: a\r\n\r\n")

        assert (await client.answer()).status == 200
        assert await client.at_end()


async def test_keep_alive_lasts_its_time(running: Served) -> None:
    """An idle connection is closed after the configured time, not before a request on it is answered."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        served.gateway(worker, keep_alive_s=1) as gateway,
        connect(gateway.port) as client,
    ):
        client.send(request("GET", "/health"))
        assert (await client.answer()).status == 200
        assert await client.at_end()


def test_what_it_relies_on_in_uvicorn() -> None:
    """Names and shapes inside uvicorn that the subclass uses; an upgrade that changes them fails here."""
    assert set(inspect.signature(RequestResponseCycle.__init__).parameters) >= {"scope", "transport", "flow"}
    source = inspect.getsource(RequestResponseCycle)
    for name in ("disconnected", "response_started", "response_complete", "chunked_encoding", "message_event"):
        assert f"self.{name}" in source
    assert list(inspect.signature(HttpToolsProtocol._start_asgi_task).parameters) == ["self", "cycle", "app"]
    assert {"pause_reading", "resume_reading", "pause_writing", "resume_writing"} <= set(dir(FlowControl))
    protocol = inspect.getsource(HttpToolsProtocol)
    for name in ("self.pipeline", "self.flow", "self.cycle", "self.scope", "send_400_response"):
        assert name in protocol


def test_a_connection_that_is_being_closed_counts_as_left_for_uvicorn_too() -> None:
    """It tells the cycle a turn later; a request that ends in between would be logged as one that nobody answered."""
    transport = SimpleNamespace(write=print, is_closing=lambda: True)
    link = ClientTransport(cast(GatewayProtocol, SimpleNamespace(transport=transport, writer=ChunkWriter(transport))))
    cycle = SimpleNamespace(disconnected=False)
    link.cycle = cast(RequestResponseCycle, cycle)

    assert link.gone
    assert cycle.disconnected


def test_after_a_request_its_answer_is_not_told_of_a_full_client() -> None:
    """The next request on the connection has another one."""
    transport = SimpleNamespace(write=print, is_closing=lambda: False)
    writer, told = ChunkWriter(transport), []
    link = ClientTransport(cast(GatewayProtocol, SimpleNamespace(transport=transport, writer=writer)))
    writer.on_full = lambda: told.append("full")
    writer.full()
    writer.drained()

    link.unwatch()
    writer.full()

    assert told == ["full"]
    assert writer.paused
