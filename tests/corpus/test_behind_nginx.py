"""A real nginx in front: by default it collects what its backend sends, and our streams ask it not to."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from dataclasses import replace

import pytest

from gateway.types import ModelView, Outcome
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.corpus.expectations import EVENTS, error_object, read_events
from tests.corpus.nginx import DEFAULT, documented, nginx, through
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, chat, post, request
from tests.proxy.served import worker_view

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

TEMPLATES = pytest.mark.parametrize("template", [DEFAULT, documented()], ids=["default", "documented"])
COMPRESSING = "gzip on; gzip_types text/event-stream;"
DEADLINE_S = 60.0
GATED = scripts.stream(scripts.gated(EVENTS, {index: f"e{index}" for index in range(1, len(EVENTS))}))


@TEMPLATES
async def test_c18_nginx_passes_every_event_at_once(relay: Relay, template: str) -> None:
    """The client has each event before the worker sends the next one, through nginx as it is by default."""
    async with (
        FaultServer(GATED) as worker,
        relay(worker, deadline_s=DEADLINE_S) as gate,
        nginx(template, gate.port) as socket,
        through(socket) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        for index in range(1, len(EVENTS)):
            await read_events(client, answer, index)
            assert EVENTS[:index] == answer.events
            worker.release(f"e{index}")
        await client.rest(answer)

        assert (200, True) == (answer.status, answer.complete)
        assert EVENTS == answer.events
        await gate.ended(Outcome.OK)


async def test_c18_nginx_passes_every_event_of_a_stream_that_it_compresses(relay: Relay) -> None:
    """Even where its compression collects what it is given: the header has it flushed."""
    async with (
        FaultServer(GATED) as worker,
        relay(worker, deadline_s=DEADLINE_S) as gate,
        nginx(DEFAULT, gate.port, more=COMPRESSING) as socket,
        through(socket) as client,
    ):
        client.send(post(CHAT, chat(), {"accept-encoding": "gzip"}))
        answer = await client.head()
        unpacking, unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16), b""
        for index in range(1, len(EVENTS)):
            while len(unpacked) < len(b"".join(EVENTS[:index])):
                unpacked += unpacking.decompress(await client.chunk(answer))
            assert b"".join(EVENTS[:index]) == unpacked
            worker.release(f"e{index}")

        assert "gzip" == answer.header("content-encoding")


async def test_c18_without_the_header_nginx_holds_the_stream_back(relay: Relay) -> None:
    """What the header is for: told to ignore it, nginx has passed nothing on when the worker sends its last."""
    async with (
        FaultServer(GATED, scripts.chat_json()) as worker,
        relay(worker, deadline_s=DEADLINE_S) as gate,
        nginx(DEFAULT, gate.port, more=COMPRESSING + " proxy_ignore_headers X-Accel-Buffering;") as socket,
        through(socket) as client,
        through(socket) as other,
    ):
        client.send(post(CHAT, chat(), {"accept-encoding": "gzip"}))
        head = asyncio.create_task(client.head())
        for index in range(1, len(EVENTS)):
            await worker.reached(f"e{index}")
            # Through the same nginx, which has one event loop: by now it has looked at what came before.
            other.send(post(CHAT, chat(stream=False)))
            assert 200 == (await other.answer()).status
            assert not head.done()
            worker.release(f"e{index}")
        answer = await client.rest(await head)

        assert b"".join(EVENTS) == gzip.decompress(answer.body)


@TEMPLATES
async def test_c35_a_departure_reaches_the_worker_through_nginx(relay: Relay, template: str) -> None:
    """The client leaves nginx in mid-stream: the worker's connection is closed, and the gateway knows why."""
    async with (
        FaultServer(GATED) as worker,
        relay(worker, deadline_s=DEADLINE_S) as gate,
        nginx(template, gate.port) as socket,
    ):
        async with through(socket) as client:
            client.send(post(CHAT, chat()))
            await read_events(client, await client.head(), 1)
        await worker.requests[0].closed.wait()

        await gate.ended(Outcome.CLIENT_CLOSED)
        await gate.idle()


@pytest.mark.parametrize(("template", "status"), [(DEFAULT, 413), (documented(), 200)], ids=["default", "documented"])
async def test_the_documented_nginx_takes_long_prompts(relay: Relay, template: str, status: int) -> None:
    """2 MiB, which nginx by default refuses by itself, in words of its own."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, deadline_s=DEADLINE_S) as gate,
        nginx(template, gate.port) as socket,
        through(socket) as client,
    ):
        client.send(post(CHAT, chat(stream=False, messages=[{"role": "user", "content": "x" * 2**21}])))
        answer = await client.answer()

        assert status == answer.status
        assert (status == 413) is (b"<html>" in answer.body)
        assert (1 if status == 200 else 0) == len(worker.requests)


async def test_the_documented_nginx_leaves_refusals_to_the_gateway(relay: Relay) -> None:
    """It answers before it has been sent everything, and the client gets its words."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, relay_policy=lambda policy: replace(policy, max_body_bytes=2**20), deadline_s=DEADLINE_S) as gate,
        nginx(documented(), gate.port) as socket,
        through(socket) as client,
    ):
        client.send(post(CHAT, chat(stream=False, messages=[{"role": "user", "content": "x" * 2**23}])))
        answer = await client.answer()

        assert 413 == answer.status
        assert "request_too_large" == error_object(answer.body)["code"]
        assert [] == worker.requests


async def test_the_documented_nginx_uses_its_connections_again(relay: Relay) -> None:
    """Requests of several clients, one after the other, come over one connection; paths come as they were sent."""
    models = [ModelView("org/sim", ("sim",), 1)]
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker_view(worker, model="org/sim"), models=models, deadline_s=DEADLINE_S) as gate,
        nginx(documented(), gate.port) as socket,
    ):
        for data in (post(CHAT, chat(stream=False)), request("GET", "/v1/models/org%2Fsim"), request("GET", "/ready")):
            async with through(socket) as client:
                client.send(data)
                assert 200 == (await client.answer()).status

        assert 1 == len(gate.server.server_state.connections)
