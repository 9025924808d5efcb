"""Time limits, each on its own, and heartbeats."""

from __future__ import annotations

import asyncio

import pytest

from gateway.proxy.policy import ModelPolicy, TimeLimits
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import chunk, response_head
from loadtest.servers.steps import Flood, Gate, Send, Sleep, Stall, Step
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, ask, chat, connect, post
from tests.proxy.served import model_policy, until

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("limit", "script", "stream"),
    [
        ("first_byte_s", scripts.never_answers(), False),
        ("first_byte_s", scripts.never_answers(), True),
        ("first_token_s", scripts.never_answers(), True),
        ("first_token_s", scripts.stream([], end=Stall()), True),
        ("total_s", scripts.never_answers(), True),
        ("total_s", scripts.never_answers(), False),
    ],
)
async def test_a_limit_before_the_first_event_is_504(
    gateway: Gateway, limit: str, script: tuple[Step, ...], stream: bool
) -> None:
    """No second attempt: the worker may be generating. Its connection is closed."""
    async with (
        asyncio.timeout(10),
        FaultServer(script) as worker,
        FaultServer(script) as other,
        gateway(worker, other, policy=model_policy(**{limit: 0.2})) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat(stream=stream)))
        record = await served.records.record()

        assert answer.status == 504
        assert answer.json()["error"]["code"] == "upstream_timeout"
        assert record.outcome is Outcome.UPSTREAM_TIMEOUT
        assert record.attempts == 1
        assert len(worker.requests) + len(other.requests) == 1
        await (worker.requests or other.requests)[0].closed.wait()
        await served.idle()


@pytest.mark.parametrize("limit", ["idle_s", "total_s"])
async def test_a_limit_in_mid_stream_is_an_error_event(gateway: Gateway, limit: str) -> None:
    """What was received, an error event without anything internal, the end."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(EVENTS[:3], end=Stall())) as worker,
        gateway(worker, policy=model_policy(**{limit: 0.3})) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))
        record = await served.records.record()

        assert answer.complete
        assert EVENTS[:3] == answer.events[:-1]
        assert b'"code":"upstream_timeout"' in answer.events[-1]
        assert b"127.0.0.1" not in answer.body
        assert record.outcome is Outcome.UPSTREAM_TIMEOUT
        await worker.requests[0].closed.wait()
        await served.idle()


async def test_a_role_event_is_no_token(gateway: Gateway) -> None:
    """The limit to the first token runs on after an event without one."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(EVENTS[:1], end=Stall())) as worker,
        gateway(worker, policy=model_policy(first_token_s=0.2)) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert EVENTS[:1] == answer.events[:-1]
        assert b"upstream_timeout" in answer.events[-1]


async def test_comments_of_a_hung_worker_are_no_progress(gateway: Gateway) -> None:
    """A worker may send keep-alive comments for ever while its engine hangs."""
    comments: list[bytes | Step] = []
    for _ in range(100):
        comments += [frames.KEEP_ALIVE, Sleep(0.05)]
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.stream([*EVENTS[:2], *comments, *EVENTS[2:]])) as worker,
        gateway(worker, policy=model_policy(idle_s=0.5)) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert b"upstream_timeout" in answer.events[-1]


async def test_limits_move_with_the_events(gateway: Gateway) -> None:
    """A stream longer than the idle limit lives as long as its events come."""
    paced: list[bytes | Step] = []
    for event in EVENTS:
        paced += [Sleep(0.15), event]
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.stream(paced)) as worker,
        gateway(worker, policy=model_policy(idle_s=0.6, first_byte_s=0.6)) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert b"".join(EVENTS) == answer.body


async def test_a_client_that_takes_nothing_is_given_up(gateway: Gateway) -> None:
    """A stalled client does not hold a worker for ever."""
    event = chunk(frames.ChatStream().content("x" * 4000))
    async with (
        asyncio.timeout(30),
        FaultServer((Send(HEAD), Flood(event, 256 * 1024 * 1024))) as worker,
        gateway(worker, policy=model_policy(stalled_client_s=0.5)) as served,
        connect(served.port, receive_buffer=4096) as client,
    ):
        client.send(post(CHAT, chat()))
        record = await served.records.record()

        assert record.outcome is Outcome.CLIENT_CLOSED
        await worker.requests[0].connection.ended.wait()
        await served.idle()


async def test_a_slow_client_is_no_idle_worker(gateway: Gateway) -> None:
    """While the client is what stops a stream, the worker's idle limit does not run."""
    event = chunk(frames.ChatStream().content("x" * 4000))
    total = 32 * 1024 * 1024
    async with (
        asyncio.timeout(60),
        FaultServer((Send(HEAD), Flood(event, total), Send(chunk(EVENTS[-2]) + chunk(EVENTS[-1]) + b"0\r\n\r\n"))) as w,
        gateway(w, policy=model_policy(idle_s=0.3, stalled_client_s=20)) as served,
        connect(served.port, receive_buffer=4096) as client,
    ):
        client.send(post(CHAT, chat()))
        await until(served.stalled)
        await asyncio.sleep(1)
        answer = await client.answer()

        assert answer.complete
        assert answer.body.endswith(frames.DONE)


async def test_heartbeats_fill_silence_before_the_first_event(gateway: Gateway) -> None:
    """Headers and comments go out in time; the events follow unchanged."""
    policy = ModelPolicy(heartbeat_s=0.1)
    script = (Gate("start"), *scripts.stream(EVENTS))
    async with (
        asyncio.timeout(10),
        FaultServer(script) as worker,
        gateway(worker, policy=policy) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        for _ in range(3):
            assert await client.chunk(answer) == b": keep-alive\n\n"
        worker.release("start")
        await client.rest(answer)

        assert answer.status == 200
        assert b"".join(EVENTS) == answer.body.replace(b": keep-alive\n\n", b"")


async def test_after_a_heartbeat_failures_are_in_band_and_retries_go_on(gateway: Gateway) -> None:
    """The status is out, but no event: another worker may still answer."""
    policy = ModelPolicy(heartbeat_s=0.1)
    async with (
        asyncio.timeout(10),
        FaultServer((Gate("fail"), *scripts.ERRORS["busy"])) as busy,
        FaultServer(scripts.stream(EVENTS)) as free,
        gateway(busy, free, policy=policy) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        await client.chunk(answer)
        busy.release("fail")
        await client.rest(answer)

        assert b"".join(EVENTS) == answer.body.replace(b": keep-alive\n\n", b"")
        assert (await served.records.record()).attempts == 2


async def test_after_a_heartbeat_a_final_failure_is_an_error_event(gateway: Gateway) -> None:
    """With nobody left to ask, the stream ends with the error."""
    policy = ModelPolicy(heartbeat_s=0.1)
    async with (
        asyncio.timeout(10),
        FaultServer((Gate("fail"), *scripts.ERRORS["context-length"])) as worker,
        gateway(worker, policy=policy) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        await client.chunk(answer)
        worker.release("fail")
        await client.rest(answer)

        assert answer.complete
        assert b"context_length_exceeded" in answer.events[-1]


async def test_no_heartbeat_inside_an_event(gateway: Gateway) -> None:
    """A worker that pauses in the middle of an event: comments only before or after it."""
    policy = ModelPolicy(limits=TimeLimits(), heartbeat_s=0.1)
    event = EVENTS[2]
    events: list[bytes | Step] = [*EVENTS[:2], event[:50], Sleep(0.5), Gate("half"), event[50:], *EVENTS[3:]]
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(events)) as worker,
        gateway(worker, policy=policy) as served,
    ):
        worker.release("half")
        answer = await ask(served.port, post(CHAT, chat()))

        assert b"".join(EVENTS) == answer.body.replace(b": keep-alive\n\n", b"")
        assert b": keep-alive\n\n" in answer.body
        assert event in answer.body


@pytest.mark.parametrize("silence", ["before", "during"])
async def test_no_heartbeat_in_what_is_no_event_stream(gateway: Gateway, silence: str) -> None:
    """
    Speech is streamed as sound: a comment in it would be noise, one before it would make it a broken event stream. Nor
    has it tokens whose first could be late.
    """
    limits = TimeLimits() if silence == "before" else TimeLimits(first_token_s=0.3)
    policy = ModelPolicy(limits=limits, heartbeat_s=0.1)
    sound = bytes(range(256)) * 2048
    head = response_head(200, (("content-type", "audio/mpeg"), ("content-length", str(len(sound)))))
    half = len(sound) * 3 // 4
    script = (
        (Sleep(0.5), Send(head + sound))
        if silence == "before"
        else (Send(head + sound[:half]), Sleep(0.5), Send(sound[half:]))
    )
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker, policy=policy) as served:
        wanted = {"model": "sim", "input": "hi", "voice": "alloy", "stream": True}
        answer = await ask(served.port, post("/v1/audio/speech", wanted))

        assert (200, "audio/mpeg", True) == (answer.status, answer.header("content-type"), answer.complete)
        assert sound == answer.body


async def test_a_client_that_takes_nothing_does_not_hold_an_ended_exchange(gateway: Gateway) -> None:
    """The error of an exchange whose time is over cannot be delivered: the connection is broken off instead."""
    event = chunk(frames.ChatStream().content("x" * 4000))
    async with (
        asyncio.timeout(30),
        FaultServer((Send(HEAD), Flood(event, 256 * 1024 * 1024))) as worker,
        gateway(worker, policy=model_policy(total_s=0.7, stalled_client_s=20, last_words_s=0.2)) as served,
        connect(served.port, receive_buffer=4096) as client,
    ):
        client.send(post(CHAT, chat()))
        record = await served.records.record()

        assert record.outcome is Outcome.UPSTREAM_TIMEOUT
        await worker.requests[0].connection.ended.wait()
        await served.idle()
