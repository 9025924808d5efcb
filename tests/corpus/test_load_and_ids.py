"""What an ended exchange leaves behind: nothing in flight, one record, a closed worker connection. Ids are unique."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

import psutil
import pytest

from gateway.clock import SystemClock
from gateway.log import EventLog
from gateway.proxy.policy import ModelPolicy
from gateway.record import ExchangeRecord
from gateway.types import Outcome, Phase
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.frames import usage_info
from loadtest.servers.http1 import chunk
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Fin, Flood, Gate, Reset, Script, Send, Stall
from tests.corpus.keyed import authenticator, bearer
from tests.corpus.relayed import Relay, Relayed
from tests.proxy.raw_client import CHAT, Answer, RawConnection, ask, chat, connect, post
from tests.proxy.served import model_policy, until

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FAILED = (Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_INCOMPLETE)


async def nothing_in_flight(gate: Relayed) -> None:
    """Every gauge is back to zero."""
    await gate.idle()
    assert gate.served is None or gate.served.busy() == {}


def log_line(record: ExchangeRecord) -> dict[str, object]:
    """The canonical line of an exchange, as the log writes it."""
    lines: list[bytes] = []
    EventLog(lines.append, SystemClock()).request(record)
    assert len(lines) == 1
    assert lines[0].endswith(b"\n")
    line: dict[str, object] = json.loads(lines[0])
    return line


@pytest.mark.parametrize(
    ("script", "outcomes"),
    [
        (scripts.stream(EVENTS[:3], end=Reset()), FAILED),
        (scripts.stream(EVENTS[:3], end=Fin()), FAILED),
        (scripts.clean_truncation(EVENTS[:3]), FAILED),
        (scripts.in_band_error(EVENTS[:3]), FAILED),
        (scripts.chat_stream(), (Outcome.OK,)),
    ],
    ids=["reset", "fin", "clean-end", "in-band-error", "complete"],
)
async def test_c46_every_ending_by_the_worker_releases_its_load(
    relay: Relay, script: Script, outcomes: tuple[Outcome, ...]
) -> None:
    """Twenty streams with one ending: every count is zero, each stream was counted once, and only good ones as good."""
    keys = authenticator()
    async with FaultServer(script) as worker, relay(worker, authenticator=keys) as gate:
        answers = await asyncio.gather(*(ask(gate.port, post(CHAT, chat(), bearer())) for _ in range(20)))
        await nothing_in_flight(gate)
        assert 0 == keys.in_flight

        failed = outcomes == FAILED
        assert [failed] * 20 == [b'"error"' in answer.body for answer in answers]
        assert [True] * 20 == [answer.complete for answer in answers]
        for index in range(20):
            await gate.ended(*outcomes, index=index)
        assert gate.served is None or len(gate.served.records.finished_records) == 20


@pytest.mark.parametrize("leave", [RawConnection.reset, RawConnection.close], ids=["reset", "fin"])
@pytest.mark.parametrize("received", [0, 3], ids=["before-first-event", "mid-stream"])
async def test_c46_every_departure_releases_its_load(relay: Relay, leave: object, received: int) -> None:
    """Streams ended by their clients leave nothing behind, and the next requests are spread as if they had not been."""
    assert callable(leave)

    def script(request: RecordedRequest) -> Script:
        return scripts.stream(EVENTS[:received], end=Stall()) if received else scripts.never_answers()

    keys = authenticator()
    held = scripts.stream([*EVENTS[:2], Gate("finish"), *EVENTS[2:]])
    async with (
        FaultServer(*[script] * 10, held) as first,
        FaultServer(*[script] * 10, held) as second,
        relay(first, second, authenticator=keys) as gate,
    ):
        for number in range(20):
            async with connect(gate.port) as client:
                client.send(post(CHAT, chat(), bearer()))
                if received:
                    answer = await client.head()
                    while len(answer.events) < received:
                        await client.chunk(answer)
                else:
                    await until(lambda: len(first.requests) + len(second.requests) > number)  # noqa: B023
                leave(client)
                await gate.ended(Outcome.CLIENT_CLOSED, index=number)
        await nothing_in_flight(gate)
        assert gate.blamed() == []
        assert keys.in_flight == 0
        for worker in (first, second):
            for request in worker.requests:
                await request.closed.wait()

        asked = [asyncio.create_task(ask(gate.port, post(CHAT, chat(), bearer()))) for _ in range(4)]
        await until(lambda: len(first.requests) == len(second.requests) == 12)
        first.release("finish")
        second.release("finish")
        assert [200] * 4 == [answer.status for answer in await asyncio.gather(*asked)]
        await nothing_in_flight(gate)


async def test_c48_two_requests_with_one_id_have_two_at_the_worker(relay: Relay) -> None:
    """Clients see their own id again; the worker sees ids that are unique and are not the client's."""
    script = scripts.stream([*EVENTS[:2], Gate("go"), *EVENTS[2:]])
    async with FaultServer(script) as worker, relay(worker) as gate:
        data = post(CHAT, chat(request_id="same"), {"x-request-id": "same"})
        asked = [asyncio.create_task(ask(gate.port, data)) for _ in range(2)]
        requests = [await worker.request(index) for index in range(2)]
        worker.release("go")
        answers = await asyncio.gather(*asked)

        ids = [request.header("x-request-id") for request in requests]
        assert len({*ids, "same", None, ""}) == 5
        assert [True, True] == [answer.complete and answer.body.endswith(frames.DONE) for answer in answers]
        assert [["same"], ["same"]] == [answer.all("x-request-id") for answer in answers]
        # vLLM takes the body's `request_id` for its own as well.
        assert [False, False] == [b"same" in request.raw for request in requests]


async def test_c48_every_attempt_has_its_own_id(relay: Relay) -> None:
    """A retry is another request to the worker, and the same one to the client and to the log."""
    async with (
        FaultServer(scripts.ERRORS["busy"]) as busy,
        FaultServer(scripts.resets_at_once()) as broken,
        FaultServer(scripts.chat_stream()) as good,
        relay(busy, broken, good) as gate,
    ):
        answer = await ask(gate.port, post(CHAT, chat(), {"x-request-id": "mine"}))

        assert (200, "mine", "mine") == (answer.status, answer.header("x-request-id"), answer.header("request-id"))
        ids = [server.requests[0].header("x-request-id") for server in (busy, broken, good)]
        assert len({*ids, "mine", None}) == 5
        record = await gate.ended(Outcome.OK)
        assert record is None or (record.request_id, record.attempts) == ("mine", 3)
        assert record is None or record.upstream_request_id == ids[-1]


@pytest.mark.parametrize("hostile", ["", "a b", "x" * 129, "é", "a,b", "../../etc", '"', "${jndi}", "a;b"])
async def test_c48_an_id_that_is_no_plain_word_is_replaced(relay: Relay, hostile: str) -> None:
    """Whatever a client calls its request, headers and log carry harmless ids, different for every request."""
    async with FaultServer(scripts.chat_stream()) as worker, relay(worker) as gate:
        answers = [await ask(gate.port, post(CHAT, chat(), {"x-request-id": hostile})) for _ in range(2)]

        ids = [answer.header("x-request-id") or "" for answer in answers]
        assert all(text.isascii() and text.isalnum() for text in ids)
        assert ids[0] != ids[1]


def usage_stream(count: int, prompt: int = 22) -> list[bytes]:
    """A stream with `continuous_usage_stats`: every event tells the tokens so far."""
    stream = frames.ChatStream()
    tokens = [stream.content(f" t{number}", usage=usage_info(prompt, number + 1)) for number in range(count)]
    return [stream.role(usage=usage_info(prompt, 0)), *tokens]


@pytest.mark.parametrize(
    ("options", "events", "prompt"),
    [
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, usage_stream(5), 22),
        ({}, EVENTS[:1] + [frames.ChatStream().content(f" t{number}") for number in range(5)], None),
    ],
    ids=["continuous-usage", "plain"],
)
async def test_c60_a_departed_client_costs_one_line_with_its_tokens(
    relay: Relay, options: dict[str, object], events: Sequence[bytes], prompt: int | None
) -> None:
    """After k of N tokens: at least k are recorded, once, as a departure; the worker is stopped, not drained."""
    script = scripts.stream(events, end=Stall())
    async with FaultServer(script) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(CHAT, chat(**options)))
        answer = await client.head()
        while len(answer.events) < len(events):
            await client.chunk(answer)
        client.reset()
        await (await worker.request(0)).closed.wait()
        record = await gate.ended(Outcome.CLIENT_CLOSED)
        await nothing_in_flight(gate)

        assert b"".join(events) == answer.body
        if record is None or gate.served is None:
            return
        assert len(gate.served.records.finished_records) == 1
        line = log_line(record)
        assert ("request", "client_closed", "streaming") == (line["event"], line["outcome"], line["disconnect"])
        assert isinstance(line["output_tokens"], int)
        assert 5 <= line["output_tokens"] <= 6
        assert prompt == line.get("prompt_tokens")


async def test_c75_clients_that_never_read_stop_their_workers(relay: Relay) -> None:
    """Nobody is read faster than its client, memory stays bounded, others are served, and in the end it is given up."""
    count = 20
    event = chunk(frames.ChatStream().content("x" * 16_000))
    flood: Script = (Send(STREAM_HEAD), Flood(event, 200 * 1024 * 1024))
    resident = psutil.Process()
    async with (
        FaultServer(*[flood] * count, scripts.chat_stream()) as worker,
        relay(worker, policy=model_policy(stalled_client_s=0.5)) as gate,
        AsyncExitStack() as stack,
    ):
        before = resident.memory_info().rss
        for _ in range(count):
            client = await stack.enter_async_context(connect(gate.port, receive_buffer=4096))
            client.send(post(CHAT, chat()))
        await worker.request(count - 1)
        assert (await ask(gate.port, post(CHAT, chat()))).body.endswith(frames.DONE)
        await until(lambda: all(request.connection.ended.is_set() for request in worker.requests[:count]))

        assert max(request.sent for request in worker.requests) < 20 * 1024 * 1024
        # The workers are in this process too, so the bound is twice that of the gateway alone.
        assert resident.memory_info().rss - before < 40 * 1024 * 1024
        await nothing_in_flight(gate)
        if gate.served is not None:
            outcomes = Counter((record.outcome, record.disconnect) for record in gate.served.records.finished_records)
            assert {(Outcome.OK, None): 1, (Outcome.CLIENT_CLOSED, Phase.STREAMING): count} == outcomes


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("leave", [RawConnection.reset, RawConnection.close], ids=["reset", "fin"])
async def test_c90_a_departure_closes_the_worker_connection(relay: Relay, leave: object, stream: bool) -> None:
    """Abort means that the socket is gone, in both directions, although it could have been kept for another request."""
    assert callable(leave)
    good = scripts.chat_stream()
    hung = scripts.stream(EVENTS[:2], end=Stall()) if stream else scripts.never_answers()
    async with FaultServer(good, hung, good) as worker, relay(worker) as gate:
        assert (await ask(gate.port, post(CHAT, chat()))).status == 200
        async with connect(gate.port) as client:
            client.send(post(CHAT, chat(stream=stream)))
            request = await worker.request(1)
            if stream:
                answer = await client.head()
                while len(answer.events) < 2:
                    await client.chunk(answer)
            leave(client)
            await request.closed.wait()
            await gate.ended(Outcome.CLIENT_CLOSED, index=1)
        await request.connection.ended.wait()

        assert (await ask(gate.port, post(CHAT, chat()))).body.endswith(frames.DONE)
        assert worker.requests[2].connection is not request.connection
        await nothing_in_flight(gate)


async def test_c90_what_a_departed_client_would_get_is_not_drained(relay: Relay) -> None:
    """A worker that goes on generating finds its socket closed, long before it has sent everything."""
    event = chunk(frames.ChatStream().content("x" * 1000))
    flood: Script = (Send(STREAM_HEAD), Gate("left"), Flood(event, 256 * 1024 * 1024))
    async with (
        FaultServer(flood) as worker,
        relay(worker, policy=ModelPolicy(heartbeat_s=0.05)) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        request = await worker.request(0)
        # Nothing of the answer has come yet: the heartbeat is all that the client has.
        answer: Answer = await client.head()
        await client.chunk(answer)
        client.reset()
        await request.closed.wait()
        worker.release("left")
        await request.connection.ended.wait()

        assert request.sent < 1024 * 1024
        record = await gate.ended(Outcome.CLIENT_CLOSED)
        assert record is None or record.disconnect is Phase.FIRST_EVENT
        await nothing_in_flight(gate)
