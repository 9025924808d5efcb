"""What is served without a task is served as everything else, and goes over to a task in any state."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.api.server_protocol import GatewayProtocol
from gateway.proxy import inline
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import LAST_CHUNK, chunk
from loadtest.servers.steps import Gate, Send, Stall
from tests.proxy.raw_client import CHAT, chat, connect, post, request
from tests.proxy.served import gateway, until

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)
WANTS_USAGE = {"stream_options": {"include_usage": True}}


async def test_repeated_heads_carry_their_own_bodies() -> None:
    """Neither side's heads are parsed again on these connections: what differs in them still counts."""
    texts = ["a", "b" * 9, "c" * 1000, "d"]
    answers = [scripts.chat_json(text) for text in texts]
    async with (
        asyncio.timeout(10),
        FaultServer(*answers) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        ids = set()
        for index, text in enumerate(texts):
            client.send(post(CHAT, chat(stream=False, user=text)))
            answer = await client.answer()
            seen = await worker.request(index)

            assert text == answer.json()["choices"][0]["message"]["content"]
            assert text == json.loads(seen.body)["user"]
            ids |= {answer.header("x-request-id"), (await served.records.record(index)).upstream_request_id}
        await served.idle()

        assert 2 * len(texts) == len(ids)
        assert len(worker.connections) == 1


async def test_streams_answers_and_errors_take_turns_on_kept_connections() -> None:
    """The parsers, which have not seen some of the messages, are where they must be for the others."""
    plain, stream = scripts.chat_json("yes"), scripts.stream(EVENTS)
    kinds = [plain, plain, stream, plain, scripts.ERRORS["bad-request"], plain, stream, plain, plain]
    async with (
        asyncio.timeout(10),
        FaultServer(*kinds) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        for kind in kinds:
            client.send(post(CHAT, chat(**WANTS_USAGE) if kind is stream else chat(stream=False)))
            answer = await client.answer()

            if kind is stream:
                assert b"".join(EVENTS) == answer.body
            elif kind is plain:
                assert "yes" in answer.json()["choices"][0]["message"]["content"]
            else:
                assert answer.status == 400
        await served.idle()

        assert len(worker.connections) == 1


async def test_small_requests_need_no_task() -> None:
    """The point of it."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json(), (Gate("go"), *scripts.chat_json())) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat(stream=False)))
        await client.answer()
        client.send(post(CHAT, chat(stream=False)))
        await worker.request(1)

        assert not served.server.server_state.tasks
        worker.release("go")
        assert (await client.answer()).status == 200
        assert not served.server.server_state.tasks


@pytest.mark.parametrize("wanted", [True, False], ids=["usage", "no usage"])
async def test_a_stream_that_ends_well_needs_no_task(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for its end, whether the worker's last bytes come in one piece or its last chunk by itself, or late."""
    continued: list[object] = []
    start_task = GatewayProtocol.start_task

    def counted(self: GatewayProtocol, *args: Any, **more: Any) -> None:
        continued.append(self)
        start_task(self, *args, **more)

    monkeypatch.setattr(GatewayProtocol, "start_task", counted)
    whole = scripts.stream(EVENTS)
    late = scripts.stream([*EVENTS, Gate("last chunk")])
    extra = WANTS_USAGE if wanted else {}
    async with (
        asyncio.timeout(10),
        FaultServer(whole, late, whole) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        for number in range(3):
            client.send(post(CHAT, chat(**extra)))
            answer = await client.answer()
            worker.release("last chunk")

            assert b"".join(EVENTS) == answer.body
            assert (await served.records.record(number)).outcome == Outcome.OK
        await served.idle()

        assert not continued
        assert served.records.in_flight == 0


async def test_a_stream_that_ends_badly_is_a_tasks_business() -> None:
    """Without its marker, or with a choice unfinished, the end is told as ever."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(EVENTS[:2]), scripts.stream([EVENTS[0], EVENTS[-1]])) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        for number in range(2):
            client.send(post(CHAT, chat()))
            answer = await client.answer()

            assert b'"error"' in answer.body
            assert (await served.records.record(number)).outcome == Outcome.UPSTREAM_INCOMPLETE
        await served.idle()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_that_meets_a_closing_connection_was_not_served(stream: bool) -> None:
    """Its end comes in the very turn in which the client's connection broke, before anybody was told of that."""
    script = scripts.stream([EVENTS[0], Gate("never")]) if stream else (Gate("never"), *scripts.chat_json())
    async with (
        asyncio.timeout(10),
        FaultServer(script) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat(stream=stream)))
        await worker.request(0)
        if stream:
            await client.chunk(await client.head())
        (exchange,) = served.relay.active
        (connection,) = served.server.server_state.connections
        assert exchange.attempt is not None
        assert exchange.attempt.connection is not None
        rest = b"".join(map(chunk, EVENTS[1:])) + LAST_CHUNK
        whole = b"".join(step.data for step in scripts.chat_json() if isinstance(step, Send))

        connection.transport.abort()
        exchange.attempt.connection.data_received(rest if stream else whole)

        record = await served.records.record()
        assert record.outcome == Outcome.CLIENT_CLOSED
        await served.idle()


async def test_a_request_behind_one_without_a_task_waits_for_its_turn() -> None:
    """Pipelining is uvicorn's: the first request goes over to a task, before its answer and in the middle of it."""
    slow = (Gate("head"), *scripts.stream([EVENTS[0], Gate("tail"), *EVENTS[1:]]))
    async with (
        asyncio.timeout(10),
        FaultServer(slow, scripts.stream([EVENTS[0], Gate("more"), *EVENTS[1:]])) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat(**WANTS_USAGE)))
        await worker.request(0)
        client.send(request("GET", "/health"))
        await until(lambda: bool(served.server.server_state.tasks))
        worker.release("head")
        worker.release("tail")
        assert b"".join(EVENTS) == (await client.answer()).body
        assert (await client.answer()).json() == {"status": "ok"}

        client.send(post(CHAT, chat(**WANTS_USAGE)))
        head = await client.head()
        assert EVENTS[0] == await client.chunk(head)
        client.send(request("GET", "/health"))
        await until(lambda: bool(served.server.server_state.tasks))
        worker.release("more")
        assert b"".join(EVENTS[1:]) == (await client.rest(head)).body.removeprefix(EVENTS[0])
        assert (await client.answer()).json() == {"status": "ok"}
        await served.idle()


async def test_the_size_limit_is_of_each_body() -> None:
    """A head that came with a small body lets no large one in, and after a large one no small one is kept out."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json(), scripts.chat_json(), scripts.chat_json()) as worker,
        gateway(worker, relay_policy=lambda policy: replace(policy, max_body_bytes=2000)) as served,
        connect(served.port) as client,
    ):
        statuses = []
        for size in (10, 3000, 20):
            client.send(post(CHAT, chat(stream=False, user="x" * size)))
            statuses.append((await client.answer()).status)

        assert [200, 413, 200] == statuses


async def test_an_error_hidden_in_a_good_status_is_found() -> None:
    """What the task would refuse is not passed on for being in one piece."""
    hidden = scripts.answer(200, b'{"object":"error","message":"no","type":"x","code":500}')
    async with (
        asyncio.timeout(10),
        FaultServer(hidden, hidden, hidden) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat(stream=False)))
        answer = await client.answer()
        await served.idle()

        assert answer.status == 500
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.interpreted
@pytest.mark.parametrize("place", ["_finish_plain", "_begin_stream"])
async def test_a_defect_is_answered_and_nothing_stays_in_flight(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours costs its own request, with an answer, a record and a closed connection."""

    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(inline, place, broken)
    script = scripts.chat_json() if place == "_finish_plain" else scripts.stream([EVENTS[0], Stall()])
    async with (
        asyncio.timeout(10),
        FaultServer(script) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat(stream=place == "_begin_stream", **WANTS_USAGE)))
        answer = await client.answer()
        record = await served.records.record()
        await served.idle()

        assert answer.status == 500
        assert record.outcome is Outcome.INTERNAL


async def test_an_idle_connection_is_closed_after_its_last_request() -> None:
    """One timer for any number of requests, and the time counts from the last of them."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json(), scripts.chat_json()) as worker,
        gateway(worker, keep_alive_s=1) as served,
        connect(served.port) as client,
    ):
        for _ in range(2):
            client.send(post(CHAT, chat(stream=False)))
            assert (await client.answer()).status == 200
        assert await client.at_end()
