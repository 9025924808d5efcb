"""Clients that leave: noticed in every phase, the worker's socket closed within a second, every count zero after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.types import Outcome, Phase, WorkerState
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.message_frames import MessagesStream, ResponsesStream
from loadtest.servers.steps import Flood, Send, Stall
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, RawConnection, chat, connect, post, request
from tests.proxy.served import Served, full_backlog, model_policy, until, worker_view

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)
LEAVE: dict[str, Callable[[RawConnection], None]] = {
    "fin": RawConnection.close,
    "rst": RawConnection.reset,
    "half-close": RawConnection.half_close,
}
NOTICED_S = 1.0 * 5
"""Five times the promise of one second: the machine may be busy."""


async def left(served: Served, phase: Phase) -> None:
    """The exchange has ended as a departure in `phase`, and holds nothing any more."""
    record = await served.records.record()
    assert (record.outcome, record.disconnect) == (Outcome.CLIENT_CLOSED, phase)
    assert served.failures == []
    await served.idle()
    assert served.busy() == {}


@pytest.mark.parametrize("how", LEAVE)
async def test_while_streaming(gateway: Gateway, how: str) -> None:
    """A client that leaves in mid-stream ends the worker's generation."""
    script = scripts.stream(EVENTS[:3], end=Stall())
    async with (
        asyncio.timeout(20),
        FaultServer(script) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        while len(answer.events) < 3:
            await client.chunk(answer)
        LEAVE[how](client)
        async with asyncio.timeout(NOTICED_S):
            await (await worker.request(0)).closed.wait()
            await left(served, Phase.STREAMING)


@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_while_the_worker_is_silent(gateway: Gateway, how: str, stream: bool) -> None:
    """Waiting for headers, streamed or not."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.never_answers()) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat(stream=stream)))
        received = await worker.request(0)
        LEAVE[how](client)
        async with asyncio.timeout(NOTICED_S):
            await received.closed.wait()
            await left(served, Phase.HEADERS)


async def test_before_the_first_event(gateway: Gateway) -> None:
    """The worker has sent its headers and prefills."""
    script = scripts.stream([], end=Stall())
    async with (
        asyncio.timeout(20),
        FaultServer(script) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        received = await worker.request(0)
        await served.reached(Phase.FIRST_EVENT)
        client.close()
        async with asyncio.timeout(NOTICED_S):
            await received.closed.wait()
            await left(served, Phase.FIRST_EVENT)


async def test_while_sending_the_body(gateway: Gateway) -> None:
    """Half a request reaches no worker."""
    async with asyncio.timeout(20), FaultServer(scripts.chat_stream()) as worker, gateway(worker) as served:
        async with connect(served.port) as client:
            client.send(post(CHAT, chat())[:-10])
            await served.reached(Phase.BODY)
            client.reset()
            async with asyncio.timeout(NOTICED_S):
                await left(served, Phase.BODY)
        assert worker.connections == []


async def test_while_waiting_for_a_worker(gateway: Gateway) -> None:
    """A request that waits for a worker on its way back is given up."""
    async with FaultServer(scripts.chat_stream()) as worker:
        view = worker_view(worker, state=WorkerState.STARTING, was_ready_at_s=asyncio.get_running_loop().time())
        async with asyncio.timeout(20), gateway(view) as served, connect(served.port) as client:
            client.send(post(CHAT, chat()))
            await served.reached(Phase.QUEUED)
            client.close()
            async with asyncio.timeout(NOTICED_S):
                await left(served, Phase.QUEUED)
        assert worker.connections == []


async def test_while_connecting(gateway: Gateway) -> None:
    """A worker that does not accept holds nobody."""
    with full_backlog() as address:
        view = worker_view(name="w0", address=address)
        async with (
            asyncio.timeout(20),
            gateway(view, policy=model_policy(connect_s=15)) as served,
            connect(served.port) as client,
        ):
            client.send(post(CHAT, chat()))
            await served.reached(Phase.CONNECTING)
            client.close()
            async with asyncio.timeout(NOTICED_S):
                await left(served, Phase.CONNECTING)


@pytest.mark.parametrize(
    ("path", "events"),
    [
        ("/v1/completions", frames.CompletionStream().events()[:2]),
        ("/v1/responses", ResponsesStream().events()[:4]),
        ("/v1/messages", MessagesStream().events()[:3]),
    ],
)
async def test_on_every_generating_route(gateway: Gateway, path: str, events: list[bytes]) -> None:
    """All routes share one relay."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.stream(events, end=Stall())) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(path, {"model": "sim", "stream": True, "input": "hi", "prompt": "hi", "max_tokens": 9}))
        await client.head()
        client.close()
        async with asyncio.timeout(NOTICED_S):
            await (await worker.request(0)).closed.wait()
            await left(served, Phase.STREAMING)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/completions", "/v1/messages"])
async def test_on_every_plain_route(gateway: Gateway, path: str) -> None:
    """A departure cancels non-streamed work of every kind."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.never_answers()) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(path, {"model": "sim", "input": "hi", "prompt": "hi", "max_tokens": 9}))
        received = await worker.request(0)
        client.close()
        async with asyncio.timeout(NOTICED_S):
            await received.closed.wait()
            await left(served, Phase.HEADERS)


async def test_with_a_second_request_waiting_behind(gateway: Gateway) -> None:
    """A pipelined request must not hide that the client has left."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.never_answers()) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()) + request("GET", "/health"))
        received = await worker.request(0)
        client.close()
        async with asyncio.timeout(NOTICED_S):
            await received.closed.wait()
            await left(served, Phase.HEADERS)


async def test_of_a_client_that_reads_nothing(gateway: Gateway) -> None:
    """A stalled client is noticed when it leaves: its unread bytes do not keep the worker busy."""
    flood = (
        Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"),
        Flood(_chunk(frames.ChatStream().content("x" * 4000)), 64 * 1024 * 1024),
    )
    async with (
        asyncio.timeout(30),
        FaultServer(flood) as worker,
        gateway(worker) as served,
        connect(served.port, receive_buffer=4096) as client,
    ):
        client.send(post(CHAT, chat()))
        received = await worker.request(0)
        await until(served.stalled)
        client.reset()
        async with asyncio.timeout(NOTICED_S):
            await received.connection.ended.wait()
            await left(served, Phase.STREAMING)


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)
