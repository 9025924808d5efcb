"""Silence on a stream: comments keep it alive where configured, and never where they would be in the way."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import pytest

from gateway.proxy.policy import ModelPolicy
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.message_frames import MessagesStream
from loadtest.servers.steps import Gate, Reset, Sleep
from tests.corpus.expectations import EVENTS, error_in, read_events, sdk
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, ask, chat, connect, post

pytestmark = pytest.mark.anyio

INTERVAL_S = 0.1
BEATING = ModelPolicy(heartbeat_s=INTERVAL_S)
COMMENT = re.compile(rb"^:[^\r\n]*\n\n", re.MULTILINE)
USER = [{"role": "user", "content": "hi"}]


async def test_c12_heartbeats_are_comments_only(relay: Relay) -> None:
    """While the worker is silent only comment lines are sent, and without them the stream is the worker's."""
    async with (
        FaultServer(scripts.stream([EVENTS[0], Gate("on"), *EVENTS[1:]])) as worker,
        relay(worker, policy=BEATING) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        await read_events(client, answer, 4)
        worker.release("on")
        await client.rest(answer)

        comments = [event for event in answer.events if event.startswith(b":")]
        assert len(comments) >= 3
        assert all(COMMENT.fullmatch(comment) for comment in comments)
        assert EVENTS == [event for event in answer.events if event not in comments]
        await gate.ended(Outcome.OK)


async def test_c12_the_sdk_sees_no_heartbeat(relay: Relay) -> None:
    """Exactly the worker's chunks, no exception, after a silence of several intervals before and within the stream."""
    script = (Sleep(3 * INTERVAL_S), *scripts.stream([*EVENTS[:2], Sleep(3 * INTERVAL_S), *EVENTS[2:]]))
    async with FaultServer(script) as worker, relay(worker, policy=BEATING) as gate, sdk(gate.port) as client:
        streamed = await client.chat.completions.create(model="sim", messages=USER, stream=True)
        chunks = [chunk async for chunk in streamed]

        assert ["", "Par", "is", ".", ""] == [chunk.choices[0].delta.content for chunk in chunks]


async def test_c12_heartbeats_on_messages(relay: Relay) -> None:
    """Anthropic's clients pass over comments; nothing else is added for them either."""
    stream = MessagesStream()
    head, *tail = stream.events()
    async with (
        FaultServer(scripts.stream([head, Gate("on"), *tail])) as worker,
        relay(worker, policy=BEATING) as gate,
        connect(gate.port) as client,
    ):
        client.send(post("/v1/messages", {"model": "sim", "stream": True, "max_tokens": 9, "messages": USER}))
        answer = await client.head()
        await read_events(client, answer, 5)
        worker.release("on")
        await client.rest(answer)

        assert len(COMMENT.findall(answer.body)) >= 2
        assert b"".join([head, *tail]) == COMMENT.sub(b"", answer.body)


async def test_c13_a_silent_worker_does_not_make_a_silent_gateway(relay: Relay) -> None:
    """Before the worker's headers: status and comments interval by interval, then the stream."""
    async with (
        FaultServer((Gate("on"), *scripts.stream(EVENTS))) as worker,
        relay(worker, policy=BEATING) as gate,
        connect(gate.port) as client,
    ):
        loop = asyncio.get_running_loop()
        client.send(post(CHAT, chat()))
        times = [loop.time()]
        answer = await client.head()
        for _ in range(4):
            assert COMMENT.fullmatch(await client.chunk(answer))
            times.append(loop.time())
        worker.release("on")
        await client.rest(answer)

        gaps = [after - before for before, after in pairwise(times)]
        assert max(gaps) < 50 * INTERVAL_S
        assert answer.header("content-type") == "text/event-stream; charset=utf-8"
        assert b"".join(EVENTS) == COMMENT.sub(b"", answer.body)
        assert len(worker.requests) == 1
        await gate.ended(Outcome.OK)


@pytest.mark.parametrize("late", ["error", "reset"])
async def test_c13_a_late_error_is_told_inside_the_stream(relay: Relay, late: str) -> None:
    """The price of a heartbeat: the status is out, so what comes later is an error event."""
    bad = scripts.ERRORS["context-length"] if late == "error" else (Reset(),)
    async with (
        FaultServer((Gate("on"), *bad)) as worker,
        relay(worker, policy=BEATING) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        await read_events(client, answer, 1)
        worker.release("on")
        await client.rest(answer)

        assert (200, True) == (answer.status, answer.complete)
        error = error_in(answer.events[-1])
        assert (error["code"] == "context_length_exceeded") is (late == "error")
        assert all(COMMENT.fullmatch(event) for event in answer.events[:-1])


async def test_c13_without_heartbeats_the_status_waits(relay: Relay) -> None:
    """Off by default: nothing is sent before the worker has answered, so its error is still a status."""
    script = (Sleep(3 * INTERVAL_S), *scripts.ERRORS["busy"])
    async with FaultServer(script) as worker, relay(worker, policy=ModelPolicy(retries=0)) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.status == 503
        assert answer.header("content-type") == "application/json"


@pytest.mark.parametrize("size", [3, 300_000], ids=["small", "large"])
async def test_c14_no_comment_inside_an_event(relay: Relay, size: int) -> None:
    """A worker that stops in the middle of a line for several intervals: the event stays in one piece."""
    event = frames.ChatStream().content("y" * size)
    half = len(event) - 20
    pieces = [*EVENTS[:2], event[:half], Sleep(4 * INTERVAL_S), event[half:], Sleep(3 * INTERVAL_S), *EVENTS[2:]]
    async with FaultServer(scripts.stream(pieces)) as worker, relay(worker, policy=BEATING) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.complete
        assert event in answer.body
        assert len(COMMENT.findall(answer.body)) >= 1
        assert b"".join([*EVENTS[:2], event, *EVENTS[2:]]) == COMMENT.sub(b"", answer.body)
        await gate.ended(Outcome.OK)


async def test_c15_repeated_aborts_do_not_pile_up(relay: Relay) -> None:
    """A client that gives up and asks again at once: every attempt is aborted, never more than two run."""
    async with FaultServer(scripts.stream([EVENTS[0], Gate("never")])) as worker, relay(worker) as gate:
        running = []
        for attempt in range(5):
            async with connect(gate.port) as client:
                client.send(post(CHAT, chat()))
                await worker.request(attempt)
                running.append(sum(not request.closed.is_set() for request in worker.requests))
        for request in worker.requests:
            await request.closed.wait()

        assert len(worker.requests) == 5
        assert max(running) <= 2
        for index in range(5):
            await gate.ended(Outcome.CLIENT_CLOSED, index=index)
        await gate.idle()
