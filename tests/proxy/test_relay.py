"""The relay's happy ways: every byte right, in both directions."""

from __future__ import annotations

import asyncio

import pytest

from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, ask, chat, connect, post

pytestmark = pytest.mark.anyio


async def test_a_stream_arrives_byte_for_byte(gateway: Gateway) -> None:
    """All events of a complete stream, in order, then the end of the body; counted as success."""
    events = frames.ChatStream().events()
    async with asyncio.timeout(10), FaultServer(scripts.stream(events)) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat(stream_options={"include_usage": True})))
        record = await served.records.record()

        assert (200, True) == (answer.status, answer.complete)
        assert b"".join(events) == answer.body
        assert answer.header("content-type") == "text/event-stream; charset=utf-8"
        assert answer.header("x-accel-buffering") == "no"
        assert answer.header("content-length") is None
        assert record.outcome is Outcome.OK
        assert (22, 3) == (record.prompt_tokens, record.output_tokens)
        assert served.records.gaps == 2
        await served.idle()


async def test_an_answer_arrives_byte_for_byte(gateway: Gateway) -> None:
    """A non-streamed answer keeps its bytes and its length."""
    script = scripts.chat_json()
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat(stream=False)))
        record = await served.records.record()

        assert answer.complete
        assert script[0].data.endswith(answer.body)
        assert answer.header("content-length") == str(len(answer.body))
        assert record.outcome is Outcome.OK
        assert record.output_tokens is not None
        await served.idle()


async def test_streams_on_one_connection_reuse_one_upstream_connection(gateway: Gateway) -> None:
    """Twenty streams one after the other: one socket on each side, and every answer whole."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.chat_stream()) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        for _ in range(20):
            client.send(post(CHAT, chat(stream_options={"include_usage": True})))
            answer = await client.answer()
            assert answer.complete
            assert answer.body.endswith(frames.DONE)

        assert len(worker.connections) == 1
        await served.idle()
