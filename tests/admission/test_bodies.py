"""What request bodies take in memory while their requests wait, whichever way they came."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace

import pytest

from gateway.proxy.policy import RelayPolicy
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Gate
from tests.admission.test_relay import refused, waiting
from tests.proxy.conftest import Gateway, anyio_backend, gateway
from tests.proxy.raw_client import CHAT, ask, chat, connect, post, request

__all__ = ["anyio_backend", "gateway"]
pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)
HELD = scripts.stream([*EVENTS[:2], Gate("go"), *EVENTS[2:]])
LARGE = json.dumps(chat() | {"user": "x" * 1_000_000}).encode()


def small(policy: RelayPolicy) -> RelayPolicy:
    """Room for one body of a megabyte, not for two."""
    return replace(policy, max_buffered_bytes=1_500_000)


async def test_a_compressed_body_counts_as_what_it_holds(gateway: Gateway) -> None:
    """A kilobyte that is a megabyte is held as a megabyte as long as its request waits; the next one is refused."""
    coded = {"content-type": "application/json", "content-encoding": "gzip"}
    compressed = request("POST", CHAT, coded, gzip.compress(LARGE))
    async with (
        asyncio.timeout(20),
        FaultServer(HELD, scripts.chat_stream()) as worker,
        gateway(worker, permits={"sim": 1}, relay_policy=small) as served,
        connect(served.port) as first,
        connect(served.port) as patient,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        patient.send(compressed)
        await waiting(served, 1)
        assert len(LARGE) == served.relay.bodies.held_bytes
        assert 2 == refused(await ask(served.port, compressed), 429, "too_many_large_requests")
        assert len(LARGE) == served.relay.bodies.held_bytes
        worker.release("go")
        await first.answer()

        assert 200 == (await patient.answer()).status
        await served.idle()


async def test_a_body_without_length_that_is_there_at_once_counts_too(gateway: Gateway) -> None:
    """Chunks that arrive in one piece, or in two: held like any other body of their size, and given back."""
    medium = json.dumps(chat() | {"user": "x" * 100_000}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked = head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(medium), medium)
    async with (
        asyncio.timeout(20),
        FaultServer(HELD, scripts.chat_stream()) as worker,
        gateway(worker, permits={"sim": 1}, relay_policy=small) as served,
        connect(served.port) as first,
        connect(served.port) as patient,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        patient.send(chunked)
        await waiting(served, 1)
        assert len(medium) == served.relay.bodies.held_bytes
        worker.release("go")
        await first.answer()

        assert 200 == (await patient.answer()).status
        await served.idle()
