"""The portable path needs nothing of our own server class: uvicorn's stock protocols serve the relay too."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Gate, Reset, Stall
from tests.proxy.raw_client import CHAT, ask, chat, connect, post
from tests.proxy.served import gateway

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)
STOCK = pytest.mark.parametrize("http", ["httptools", "h11"])
Stock = Literal["h11", "httptools"]


@STOCK
async def test_streams_and_answers_arrive(http: Stock) -> None:
    """Byte for byte, one after the other on one connection."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(EVENTS), scripts.chat_json()) as worker,
        gateway(worker, http=http) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        assert (await client.answer()).body == b"".join(EVENTS)
        client.send(post(CHAT, chat(stream=False)))
        assert (await client.answer()).status == 200
        await served.idle()


@STOCK
async def test_a_departure_closes_the_workers_connection(http: Stock) -> None:
    """The ASGI disconnect message does what the callback does elsewhere."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(EVENTS[:2], end=Stall())) as worker,
        gateway(worker, http=http) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        await client.head()
        client.close()
        await (await worker.request(0)).closed.wait()
        assert (await served.records.record()).outcome is Outcome.CLIENT_CLOSED
        await served.idle()


@STOCK
async def test_a_cut_stream_is_told(http: Stock) -> None:
    """An error event, then a proper end."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(EVENTS[:3], end=Reset())) as worker,
        gateway(worker, http=http) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.complete
        assert b"stream_incomplete" in answer.events[-1]


@STOCK
async def test_half_an_event_ends_without_the_last_chunk(http: Stock) -> None:
    """Returning without the last body message makes the server close the connection."""
    half = frames.ChatStream().content("z" * 500_000)[:400_000]
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream([EVENTS[0], half, Gate("cut")], end=Reset())) as worker,
        gateway(worker, http=http) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        while len(answer.body) < 300_000:
            await client.chunk(answer)
        worker.release("cut")
        await client.rest(answer)

        assert not answer.complete
