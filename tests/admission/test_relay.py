"""Waiting for a permit on real sockets: what clients get, what workers see, what is written down."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.admission import QueueLimits
from gateway.proxy.exchange import Exchange
from gateway.proxy.policy import ModelPolicy
from gateway.types import ModelView, Outcome, Phase, Stage, WorkerState
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Gate, Reset
from tests.proxy.conftest import Gateway, anyio_backend, gateway
from tests.proxy.raw_client import CHAT, Answer, ask, chat, connect, post
from tests.proxy.served import Served, until

__all__ = ["anyio_backend", "gateway"]
pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)
HELD = scripts.stream([*EVENTS[:2], Gate("go"), *EVENTS[2:]])
ONE = {"sim": 1}


def refused(answer: Answer, status: int, code: str) -> int:
    """Checks a refusal in OpenAI's envelope; returns its pause in seconds."""
    error = answer.json()["error"]
    assert (status, code, None) == (answer.status, error["code"], error["param"])
    return int(answer.header("retry-after"))


async def waiting(served: Served, count: int) -> None:
    """Until so many are in line."""
    await until(lambda: served.admission.waiting == count)


async def test_a_request_waits_for_its_permit_and_the_record_says_so(gateway: Gateway) -> None:
    """The worker has one at a time; the second goes as soon as the first has ended, and its wait is written down."""
    async with (
        asyncio.timeout(20),
        FaultServer(HELD, scripts.chat_stream()) as worker,
        gateway(worker, permits=ONE) as served,
        connect(served.port) as first,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        second = asyncio.create_task(ask(served.port, post(CHAT, chat())))
        await waiting(served, 1)
        await served.reached(Phase.QUEUED)
        assert 1 == len(worker.requests)
        worker.release("go")
        answers = [await first.answer(), await second]

        assert [200, 200] == [answer.status for answer in answers]
        assert all(answer.body.endswith(frames.DONE) for answer in answers)
        records = [await served.records.record(index) for index in range(2)]
        assert [False, True] == [Stage.ADMISSION in record.stages for record in records]
        assert records[1].stages[Stage.ADMISSION] > 0
        await served.idle()


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings"])
async def test_a_full_queue_answers_429_at_once(gateway: Gateway, path: str) -> None:
    """In each family's envelope, with Retry-After; the worker hears nothing of it; counted with its reason."""
    async with (
        asyncio.timeout(20),
        FaultServer(HELD) as worker,
        gateway(worker, permits=ONE, queues={"sim": QueueLimits(max_queued=0)}) as served,
        connect(served.port) as first,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        answer = await ask(served.port, post(path, chat() | {"max_tokens": 1, "input": "x"}))
        worker.release("go")
        await first.answer()

        if path == "/v1/messages":
            assert (429, "rate_limit_error") == (answer.status, answer.json()["error"]["type"])
            assert 1 <= int(answer.header("retry-after")) <= 60
        else:
            assert 1 <= refused(answer, 429, "queue_full") <= 60
        record = await served.records.record(0)
        assert (Outcome.REJECTED, "queue_full", "queue_full", 0) == (
            record.outcome,
            record.rejection,
            record.error_code,
            record.attempts,
        )
        assert 1 == len(worker.requests)
        assert [] == served.failures
        await served.idle()


async def test_who_waits_too_long_gets_429(gateway: Gateway) -> None:
    """After the configured time, not before anybody could be served, and never a worker's fault."""
    async with (
        asyncio.timeout(20),
        FaultServer(HELD) as worker,
        gateway(worker, permits=ONE, queues={"sim": QueueLimits(timeout_s=0.2)}) as served,
        connect(served.port) as first,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        answer = await ask(served.port, post(CHAT, chat(stream=False)))
        worker.release("go")
        await first.answer()

        refused(answer, 429, "queue_timeout")
        record = await served.records.record(0)
        assert (Outcome.REJECTED, "queue_timeout") == (record.outcome, record.rejection)
        assert record.stages[Stage.ADMISSION] >= 0.2
        assert (1, []) == (len(worker.requests), served.failures)
        await served.idle()


async def test_a_client_that_leaves_in_line_is_noticed_and_costs_nothing(gateway: Gateway) -> None:
    """Its place is given up at once; the worker never hears of it; the next in line is served."""
    async with (
        asyncio.timeout(20),
        FaultServer(HELD, scripts.chat_stream()) as worker,
        gateway(worker, permits=ONE) as served,
        connect(served.port) as first,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        async with connect(served.port) as leaving:
            leaving.send(post(CHAT, chat()))
            await waiting(served, 1)
            patient = asyncio.create_task(ask(served.port, post(CHAT, chat())))
            await waiting(served, 2)
            leaving.reset()
            await waiting(served, 1)
        record = await served.records.record(0)
        worker.release("go")
        await first.answer()

        assert (Outcome.CLIENT_CLOSED, Phase.QUEUED, 0, "") == (
            record.outcome,
            record.disconnect,
            record.attempts,
            record.worker,
        )
        assert 200 == (await patient).status
        assert 2 == len(worker.requests)
        await served.idle()


async def test_a_retry_waits_for_a_permit_of_another_worker(gateway: Gateway) -> None:
    """Its first worker fails, the second is full: it is served there when there is room, and counted once on each."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.stream([*EVENTS[:2], Gate("go"), *EVENTS[2:]]), scripts.chat_stream()) as busy,
        FaultServer(scripts.raw(b"", Reset())) as failing,
        gateway(busy, failing, permits=ONE) as served,
        connect(served.port) as first,
    ):
        first.send(post(CHAT, chat()))
        await busy.request(0)
        tried_again = asyncio.create_task(ask(served.port, post(CHAT, chat())))
        await failing.request(0)
        await waiting(served, 1)
        assert 1 == served.view.in_flight
        busy.release("go")
        await first.answer()
        answer = await tried_again

        assert 200 == answer.status
        assert answer.body.endswith(frames.DONE)
        record = await served.records.record(1)
        assert (2, "w0", Outcome.OK) == (record.attempts, record.worker, record.outcome)
        assert (2, 1) == (len(busy.requests), len(failing.requests))
        await served.idle()


async def test_a_retry_that_finds_no_room_in_time_is_told_to_come_back(gateway: Gateway) -> None:
    """429 rather than the failure: the client may try again, and where it does there is a worker that works."""
    async with (
        asyncio.timeout(20),
        FaultServer(HELD) as busy,
        FaultServer(scripts.raw(b"", Reset())) as failing,
        gateway(busy, failing, permits=ONE, queues={"sim": QueueLimits(timeout_s=0.2)}) as served,
        connect(served.port) as first,
    ):
        first.send(post(CHAT, chat()))
        await busy.request(0)
        refused(await ask(served.port, post(CHAT, chat())), 429, "queue_timeout")
        busy.release("go")
        await first.answer()
        assert ["w1"] == [failure.worker for failure in served.failures]
        await served.idle()


@pytest.mark.parametrize("end", ["drain", "deadline"])
async def test_a_stop_empties_the_queue(gateway: Gateway, end: str) -> None:
    """Those in line get 503 with a pause and their connection's end; what runs is not touched by the drain."""
    async with (
        asyncio.timeout(20),
        FaultServer(HELD) as worker,
        gateway(worker, permits=ONE) as served,
        connect(served.port) as first,
        connect(served.port) as second,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        second.send(post(CHAT, chat()))
        await waiting(served, 1)
        if end == "drain":
            served.view.drain()
        else:
            served.relay.shut_down()
        answer = await second.answer()

        assert (503, "shutting_down") == (answer.status, answer.json()["error"]["code"])
        if end == "drain":
            assert ("1", "close") == (answer.header("retry-after"), answer.header("connection"))
            record = await served.records.record(0)
            assert (Outcome.REJECTED, "shutting_down") == (record.outcome, record.rejection)
            worker.release("go")
            assert (await first.answer()).body.endswith(frames.DONE)
        await served.idle()


async def test_heartbeats_go_out_while_a_stream_waits(gateway: Gateway) -> None:
    """Comments keep the connection alive in line; a refusal after them is an event, and the end."""
    policy = ModelPolicy(heartbeat_s=0.05)
    async with (
        asyncio.timeout(20),
        FaultServer(HELD) as worker,
        gateway(worker, permits=ONE, queues={"sim": QueueLimits(timeout_s=0.4)}, policy=policy) as served,
        connect(served.port) as first,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        answer = await ask(served.port, post(CHAT, chat()))
        worker.release("go")
        await first.answer()

        assert 200 == answer.status
        assert answer.body.startswith(b": keep-alive\n\n")
        assert b'"code":"queue_timeout"' in answer.body.split(b"data: ")[-1]
        assert frames.DONE not in answer.body
        await served.idle()


async def test_a_restarting_worker_is_waited_for_in_line(gateway: Gateway) -> None:
    """Requests that come while the only worker is on its way are served when it is READY, in order, one at a time."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.chat_stream()) as worker,
        gateway(worker, permits=ONE) as served,
    ):
        (ready,) = served.view.snapshot.workers
        gone = replace(ready, state=WorkerState.STARTING, was_ready_at_s=asyncio.get_running_loop().time())
        served.publish([gone])
        asked = [asyncio.create_task(ask(served.port, post(CHAT, chat()))) for _ in range(3)]
        await waiting(served, 3)
        served.publish([ready], models=(ModelView("sim", ("alias",), 1),))

        assert [200] * 3 == [(await one).status for one in asked]
        assert 1 == len(worker.connections)
        await served.idle()


async def test_a_storm_with_departures_leaves_nothing_behind(gateway: Gateway) -> None:
    """Three hundred clients, a third of which leave at random moments, at four permits: every stayer is served whole,
    and every count is zero afterwards. Who leaves before the request has been read has asked nothing."""
    chance = random.Random(4)
    script: Any = scripts.chat_stream()

    async def client(served: Served) -> str:
        leaves = chance.random() < 0.33
        async with connect(served.port) as connection:
            connection.send(post(CHAT, chat()))
            if leaves:
                await asyncio.sleep(chance.uniform(0, 0.2))
                connection.reset()
                return "left"
            answer = await connection.answer()
            return "served" if answer.status == 200 and answer.body.endswith(frames.DONE) else "failed"

    async with (
        asyncio.timeout(60),
        FaultServer(script) as worker,
        gateway(worker, permits={"sim": 4}) as served,
    ):
        done = Counter(await asyncio.gather(*(client(served) for _ in range(300))))
        await served.idle()

        assert {"left", "served"} == done.keys()
        outcomes = Counter(record.outcome for record in served.records.finished_records)
        assert done["served"] <= outcomes[Outcome.OK] <= outcomes.total() <= 300
        assert outcomes.keys() <= {Outcome.OK, Outcome.CLIENT_CLOSED}


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing is freed but by its last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", ["served", "queue_full", "queue_timeout", "left", "drained"])
async def test_an_exchange_that_waited_is_free_with_its_body(gateway: Gateway, end: str) -> None:
    """However its wait ended: the room keeps nothing of it, nor does what it was told."""
    limits = QueueLimits(
        max_queued=0 if end == "queue_full" else 10, timeout_s=0.1 if end == "queue_timeout" else 600.0
    )
    async with (
        asyncio.timeout(20),
        FaultServer(HELD, scripts.chat_stream()) as worker,
        gateway(worker, permits=ONE, queues={"sim": limits}) as served,
        connect(served.port) as first,
        connect(served.port) as second,
    ):
        first.send(post(CHAT, chat()))
        await worker.request(0)
        second.send(post(CHAT, chat()))
        if end not in ("queue_full", "queue_timeout"):
            await waiting(served, 1)
        if end == "served":
            worker.release("go")
        elif end == "left":
            second.reset()
        elif end == "drained":
            served.view.drain()
        record = await served.records.record(1 if end == "served" else 0)
        running = 0 if end == "served" else 1
        await until(lambda: len(served.server.server_state.tasks) == running)

        assert (record.rejection or record.outcome) in (end, Outcome.OK, Outcome.CLIENT_CLOSED, "shutting_down")
        assert running == sum(isinstance(one, Exchange) for one in gc.get_objects())
        worker.release("go")
        await served.idle()
