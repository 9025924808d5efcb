"""Clients that leave: every route, streamed or not, gives the worker back within a second."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.middleware.base import BaseHTTPMiddleware

import gateway
from gateway.proxy.interfaces import Caller
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import chunk
from loadtest.servers.steps import Flood, Send, Stall
from tests.corpus.expectations import EVENTS, read_events
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, RawConnection, ask, chat, connect, post, request
from tests.proxy.served import until

pytestmark = pytest.mark.anyio

NOTICED_S = 1.0 * 3
"""Three times the promise of one second: the machine may be busy."""
USER = [{"role": "user", "content": "hi"}]
LEAVE: dict[str, Callable[[RawConnection], None]] = {
    "fin": RawConnection.close,
    "rst": RawConnection.reset,
    "half-close": RawConnection.half_close,
}


@pytest.mark.parametrize("how", LEAVE)
async def test_c35_a_departure_in_mid_stream_stops_the_worker(relay: Relay, how: str) -> None:
    """After three events the client goes: the worker's connection is closed in time, counted as such."""
    script = scripts.stream(EVENTS[:3], end=Stall())
    async with FaultServer(script) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(CHAT, chat(max_tokens=4000)))
        answer = await client.head()
        await read_events(client, answer, 3)
        LEAVE[how](client)
        async with asyncio.timeout(NOTICED_S):
            await worker.requests[0].closed.wait()

        await gate.ended(Outcome.CLIENT_CLOSED)
        assert [] == gate.blamed()
        await gate.idle()


@pytest.mark.parametrize("how", ["rst", "half-close"])
async def test_c35_a_client_that_reads_nothing_is_seen_to_leave(relay: Relay, how: str) -> None:
    """Its unread bytes, stalled on their way, do not keep the worker busy."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    flood = Flood(chunk(frames.ChatStream().content("x" * 4000)), 64 * 1024 * 1024)
    async with (
        FaultServer((Send(head), flood)) as worker,
        relay(worker) as gate,
        connect(gate.port, receive_buffer=4096) as client,
    ):
        client.send(post(CHAT, chat()))
        received = await worker.request(0)
        if gate.served is not None:
            await until(gate.served.stalled)
        LEAVE[how](client)
        async with asyncio.timeout(NOTICED_S):
            await received.connection.ended.wait()

        await gate.ended(Outcome.CLIENT_CLOSED)
        await gate.idle()


@pytest.mark.parametrize("how", LEAVE)
async def test_c36_a_departure_while_waiting_stops_the_worker(relay: Relay, how: str) -> None:
    """Not streamed, nothing answered yet: the same."""
    async with FaultServer(scripts.never_answers()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(CHAT, chat(stream=False)))
        received = await worker.request(0)
        LEAVE[how](client)
        async with asyncio.timeout(NOTICED_S):
            await received.closed.wait()

        await gate.ended(Outcome.CLIENT_CLOSED)
        assert [] == gate.blamed()
        await gate.idle()


async def test_c36_many_departures_leave_nothing_behind(relay: Relay) -> None:
    """Fifty waiting requests given up at once: no connection to the worker remains."""

    async def give_up(port: int) -> None:
        async with connect(port) as client:
            client.send(post(CHAT, chat(stream=False)))
            await worker.until(lambda: len(worker.requests) == 50)

    async with FaultServer(scripts.never_answers()) as worker, relay(worker) as gate:
        await asyncio.gather(*(give_up(gate.port) for _ in range(50)))
        async with asyncio.timeout(NOTICED_S):
            await worker.idle()
            await gate.idle()
        assert 50 == len(worker.requests)


MULTIPART = (
    b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nsim\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
)
EVERYTHING = {
    "model": "sim",
    "messages": USER,
    "input": "hi",
    "prompt": "hi",
    "max_tokens": 9,
    "query": "a",
    "documents": ["b"],
    "text_1": "a",
    "text_2": "b",
}
ROUTES = [
    *(
        (path, stream)
        for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages")
        for stream in (True, False)
    ),
    *((path, False) for path in ("/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/v1/audio/speech")),
    ("/v1/audio/transcriptions", False),
]


@pytest.mark.parametrize(("path", "stream"), ROUTES, ids=str)
async def test_c37_every_route_gives_the_worker_back(relay: Relay, path: str, stream: bool) -> None:
    """One relay serves them all, so a departure is noticed on all of them."""
    async with FaultServer(scripts.never_answers()) as worker, relay(worker) as gate, connect(gate.port) as client:
        if path.endswith("transcriptions"):
            client.send(post(path, MULTIPART, {"content-type": "multipart/form-data; boundary=b"}))
        else:
            client.send(post(path, {**EVERYTHING, "stream": stream}))
        received = await worker.request(0)
        client.close()
        async with asyncio.timeout(NOTICED_S):
            await received.closed.wait()

        await gate.ended(Outcome.CLIENT_CLOSED)
        await gate.idle()


class Everybody:
    """An authenticator that knows everybody."""

    def authenticate(self, headers: list[tuple[bytes, bytes]]) -> Caller:
        """Accept."""
        return Caller("tenant")


async def test_c38_no_middleware_hides_a_departure(relay: Relay) -> None:
    """With every middleware on, a departure is still seen: browser origin, key, all of it pure ASGI."""
    async with (
        FaultServer(scripts.never_answers(), scripts.stream(EVENTS)) as worker,
        relay(worker, cors_origins=["https://app.test"], authenticator=Everybody()) as gate,
        connect(gate.port) as client,
    ):
        stack = [middleware.cls for middleware in gate.server.config.app.user_middleware]
        assert [] == [cls for cls in stack if isinstance(cls, type) and issubclass(cls, BaseHTTPMiddleware)]
        browser = {"origin": "https://app.test", "authorization": "Bearer k"}
        client.send(post(CHAT, chat(stream=False), browser))
        received = await worker.request(0)
        client.close()
        async with asyncio.timeout(NOTICED_S):
            await received.closed.wait()
        await gate.ended(Outcome.CLIENT_CLOSED)

        answer = await ask(gate.port, post(CHAT, chat(), browser))
        assert "https://app.test" == answer.header("access-control-allow-origin")
        assert answer.body.endswith(frames.DONE)


def test_c38_the_sources_know_no_such_middleware() -> None:
    """Where it would be added: anywhere in the gateway."""
    sources = Path(gateway.__file__).parent.rglob("*.py")
    hiding = re.compile(r"BaseHTTPMiddleware|\.middleware\(")

    assert [] == [path.name for path in sources if hiding.search(path.read_text())]


async def test_c38_a_pipelined_request_hides_no_departure(relay: Relay) -> None:
    """Bytes of another request behind the running one must not stop the reading that sees the end."""
    async with FaultServer(scripts.never_answers()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(CHAT, chat()) + request("GET", "/health"))
        received = await worker.request(0)
        client.close()
        async with asyncio.timeout(NOTICED_S):
            await received.closed.wait()
        await gate.ended(Outcome.CLIENT_CLOSED)
