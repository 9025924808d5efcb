"""How streams end: a failed one never looks like a complete one, and the client is told in its family's own form."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.protocol import paths
from gateway.proxy.direct import Message
from gateway.proxy.interfaces import Caller
from gateway.types import Outcome, RetryReason
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.message_frames import MessagesStream, ResponsesStream
from loadtest.servers.steps import Fin, Gate, Reset, Send, Stall, Step
from tests.proxy import served
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, Answer, ask, chat, connect, post

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)


def error_of(event: bytes) -> dict[str, object]:
    """The error object of an in-band error event of chat."""
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    return error


def no_success(answer: Answer) -> None:
    assert b"[DONE]" not in answer.body
    assert b'"finish_reason":"stop"' not in answer.body


@pytest.mark.parametrize("end", [Reset(), Fin()], ids=["rst", "fin"])
@pytest.mark.parametrize("cut", [1, 2, 4], ids=["after-role", "mid-content", "before-finish"])
async def test_a_cut_stream_ends_with_an_error_event(gateway: Gateway, cut: int, end: Step) -> None:
    """Exactly the received events, one error event, the end of the body; nothing invented, no second attempt."""
    script = scripts.stream([*EVENTS[:cut], Gate("cut")], end=end)
    async with (
        asyncio.timeout(10),
        FaultServer(script) as worker,
        FaultServer(script) as other,
        gateway(worker, other) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        while len(answer.events) < cut:
            await client.chunk(answer)
        worker.release("cut")
        other.release("cut")
        await client.rest(answer)
        record = await served.records.record()

        assert answer.complete
        assert EVENTS[:cut] == answer.events[:-1]
        assert error_of(answer.events[-1])["code"] == "stream_incomplete"
        no_success(answer)
        assert record.outcome is Outcome.UPSTREAM_INCOMPLETE or record.outcome is Outcome.UPSTREAM_ERROR
        assert record.retries == []
        assert len(worker.requests) + len(other.requests) == 1
        await served.idle()


async def test_a_cut_inside_an_event_leaves_no_half_event(gateway: Gateway) -> None:
    """What began of an event is dropped, so that the error event is readable."""
    script = scripts.stream([*EVENTS[:2], EVENTS[2][:40], Gate("cut")], end=Reset())
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        async with connect(served.port) as client:
            client.send(post(CHAT, chat()))
            answer = await client.head()
            while len(answer.events) < 2:
                await client.chunk(answer)
            worker.release("cut")
            await client.rest(answer)

        assert answer.complete
        assert EVENTS[:2] == answer.events[:2]
        assert len(answer.events) == 3
        assert error_of(answer.events[2])["code"] == "stream_incomplete"


async def test_a_cut_between_finish_and_done_is_told(gateway: Gateway) -> None:
    """The finish reason has gone out; the missing end is told all the same."""
    script = scripts.stream([*EVENTS[:-1], Gate("cut")], end=Reset())
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        async with connect(served.port) as client:
            client.send(post(CHAT, chat()))
            answer = await client.head()
            while len(answer.events) < len(EVENTS) - 1:
                await client.chunk(answer)
            worker.release("cut")
            await client.rest(answer)
        record = await served.records.record()

        assert answer.complete
        assert EVENTS[:-1] == answer.events[:-1]
        assert error_of(answer.events[-1])
        assert b"[DONE]" not in answer.body
        assert record.outcome is not Outcome.OK


@pytest.mark.parametrize("end", [Reset(), Fin()], ids=["rst", "fin"])
async def test_headers_alone_are_a_retryable_failure(gateway: Gateway, end: Step) -> None:
    """A worker that dies before its first event costs an attempt, not the request."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream([], end=end)) as dead,
        FaultServer(scripts.stream(EVENTS)) as well,
        gateway(dead, well) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))
        record = await served.records.record()

        assert b"".join(EVENTS) == answer.body
        assert record.retries == [RetryReason.CONNECTION_LOST]
        assert record.outcome is Outcome.OK
        assert dead.requests[0].body == well.requests[0].body
        assert dead.requests[0].header("x-request-id") != well.requests[0].header("x-request-id")
        assert [failure.worker for failure in served.failures] == ["w0"]
        await served.idle()


async def test_headers_alone_without_another_worker_are_502(gateway: Gateway) -> None:
    """Nothing was sent to the client, so it gets a status."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream([], end=Fin())) as dead,
        gateway(dead) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert (502, "application/json") == (answer.status, answer.header("content-type"))
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_proper_end_without_a_finish_is_incomplete(gateway: Gateway) -> None:
    """Framing that ends well does not make the answer whole."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.clean_truncation(EVENTS[:3])) as worker,
        gateway(worker) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))
        record = await served.records.record()

        assert EVENTS[:3] == answer.events[:-1]
        assert error_of(answer.events[-1])["code"] == "stream_incomplete"
        assert record.outcome is Outcome.UPSTREAM_INCOMPLETE
        no_success(answer)


async def test_a_finished_answer_without_done_is_accepted(gateway: Gateway) -> None:
    """All choices finished and the connection ended properly: nothing is added, nothing is complained about."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(EVENTS[:-1])) as worker,
        gateway(worker) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert b"".join(EVENTS[:-1]) == answer.body
        assert (await served.records.record()).outcome is Outcome.OK


async def test_done_alone_is_no_answer(gateway: Gateway) -> None:
    """A worker that failed before its first token is not a success with no tokens."""
    async with asyncio.timeout(10), FaultServer(scripts.stream([frames.DONE])) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.status == 502
        assert (await served.records.record()).outcome is Outcome.UPSTREAM_INCOMPLETE


@pytest.mark.parametrize("event", [frames.error_event(code=503), frames.flat_error_event()], ids=["told", "flat"])
async def test_an_error_as_first_event_becomes_a_status(gateway: Gateway, event: bytes) -> None:
    """Nothing was sent yet: the client gets the status the error names."""
    script = scripts.in_band_error(event=event)
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))
        record = await served.records.record()

        assert answer.status == 503
        assert answer.json()["error"]["message"]
        assert record.outcome is Outcome.UPSTREAM_ERROR


async def test_an_error_as_first_event_is_tried_elsewhere(gateway: Gateway) -> None:
    """A busy worker's error in a 200 stream is no reason to fail when another worker is free."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.in_band_error()) as busy,
        FaultServer(scripts.stream(EVENTS)) as free,
        gateway(busy, free) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert b"".join(EVENTS) == answer.body
        assert (await served.records.record()).retries == [RetryReason.IN_BAND_ERROR]


async def test_an_error_in_mid_stream_is_relayed_as_it_is(gateway: Gateway) -> None:
    """The worker's own words reach the client byte for byte; the exchange counts as failed."""
    events = [*EVENTS[:3], frames.error_event(), frames.DONE]
    async with asyncio.timeout(10), FaultServer(scripts.stream(events)) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))

        assert b"".join(events) == answer.body
        assert (await served.records.record()).outcome is Outcome.UPSTREAM_ERROR


async def test_a_flat_error_in_mid_stream_is_wrapped(gateway: Gateway) -> None:
    """SDKs pass over the flat form: the gateway says it in theirs, and no [DONE] follows."""
    events = [*EVENTS[:3], frames.flat_error_event("queue full"), frames.DONE]
    async with asyncio.timeout(10), FaultServer(scripts.stream(events)) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))

        assert EVENTS[:3] == answer.events[:3]
        assert error_of(answer.events[-1])["message"] == "queue full"
        assert b"[DONE]" not in answer.body


async def test_an_abort_that_nobody_asked_for_is_a_failure(gateway: Gateway) -> None:
    """A stopping worker ends its streams as if all were well, with `finish_reason: abort`."""
    events = frames.ChatStream().events(finish="abort", usage=False)
    async with asyncio.timeout(10), FaultServer(scripts.stream(events)) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))

        assert error_of(answer.events[-1])
        assert b"[DONE]" not in answer.body
        assert (await served.records.record()).outcome is Outcome.UPSTREAM_INCOMPLETE


@pytest.mark.parametrize(
    ("path", "events", "kind"),
    [
        ("/v1/responses", ResponsesStream().events()[:4], b"event: error\n"),
        ("/v1/messages", MessagesStream().events()[:3], b"event: error\n"),
        ("/v1/completions", frames.CompletionStream().events()[:2], b'data: {"error"'),
    ],
)
async def test_every_family_is_told_in_its_own_form(
    gateway: Gateway, path: str, events: list[bytes], kind: bytes
) -> None:
    """The last event of a cut stream is the family's error event."""
    script = scripts.stream(events, end=Fin())
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(path, {"model": "sim", "stream": True, "input": "hi", "max_tokens": 5}))

        assert answer.complete
        assert answer.body.startswith(b"".join(events))
        assert answer.events[-1].startswith(kind)


async def test_the_end_does_not_wait_for_the_worker(gateway: Gateway) -> None:
    """After [DONE] the client's answer ends at once although the worker keeps its connection open."""
    script = scripts.stream([*EVENTS], end=Stall())
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        async with connect(served.port) as client:
            for _ in range(2):
                client.send(post(CHAT, chat()))
                async with asyncio.timeout(0.5 * 5):
                    answer = await client.answer()
                assert b"".join(EVENTS) == answer.body
        for request in worker.requests:
            await request.closed.wait()
        await served.idle()


async def test_done_travels_with_the_end_of_the_body(gateway: Gateway) -> None:
    """The terminating chunk is in the same write as [DONE]: a client that stops at [DONE] finds the connection idle."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(EVENTS)) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            piece = await client.reader.read(65536)
            received += piece
        assert b"[DONE]" in piece


async def test_a_cut_answer_is_tried_elsewhere(gateway: Gateway) -> None:
    """A non-streamed answer that is cut has reached nobody."""
    whole = scripts.chat_json()
    first = whole[0]
    assert isinstance(first, Send)
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.raw(first.data[:-20], Fin())) as dead,
        FaultServer(whole) as well,
        gateway(dead, well) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat(stream=False)))

        assert first.data.endswith(answer.body)
        assert (await served.records.record()).retries == [RetryReason.CONNECTION_LOST]


async def test_an_aborted_answer_is_a_failure(gateway: Gateway) -> None:
    """A 200 body with `finish_reason: abort` is what a stopping worker leaves behind."""
    body = json.loads(json.dumps(frames.chat_body("Par")))
    body["choices"][0]["finish_reason"] = "abort"
    async with asyncio.timeout(10), FaultServer(scripts.answer(200, body)) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat(stream=False)))

        assert answer.status == 502
        assert (await served.records.record()).outcome is Outcome.UPSTREAM_INCOMPLETE


async def test_a_large_answer_cut_in_its_middle_breaks_the_framing(gateway: Gateway) -> None:
    """Too large to be held, its status is out: the client must see that it is not whole."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2000000\r\n\r\n"
    script = (Send(head + b" " * 1_000_000), Fin())
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        answer = await ask(served.port, post("/v1/embeddings", {"model": "sim", "input": "x"}))

        assert not answer.complete
        assert (await served.records.record()).outcome is not Outcome.OK
        await served.idle()


async def test_no_error_lands_in_an_event_of_which_a_slow_client_has_half() -> None:
    """The rest of the event had arrived, and was still to be sent: what the client has decides, not what we have."""
    large = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 90_000 + b'"}}]}\n\n'
    script = scripts.stream([EVENTS[0], Gate("half"), large[:70_000], Gate("rest"), large[70_000:]], end=Stall())
    route = paths.resolve(CHAT.encode())
    assert isinstance(route, paths.InferenceRoute)
    request = iter([{"type": "http.request", "body": json.dumps(chat()).encode(), "more_body": False}])
    sent: list[Message] = []
    writable = asyncio.Event()
    writable.set()

    async def receive() -> Message:
        return next(request, None) or await asyncio.Event().wait()  # type: ignore[return-value]  # never returns

    async def send(message: Message) -> None:
        await writable.wait()
        sent.append(message)
        if b"xxx" in message.get("body", b""):
            writable.clear()

    async with asyncio.timeout(10), FaultServer(script) as worker, served.gateway(worker, direct=False) as running:
        scope = {"method": "POST", "headers": [(b"content-type", b"application/json")]}
        serving = asyncio.create_task(running.relay.serve(route, scope, receive, send, Caller()))
        await worker.request(0)
        worker.release("half")
        await served.until(lambda: not writable.is_set())
        (exchange,) = running.relay.active
        assert exchange.attempt is not None
        answer = exchange.attempt.answer
        assert answer is not None
        assert answer.mid_event
        worker.release("rest")
        await served.until(lambda: not answer.mid_event and exchange.in_send)
        running.relay.shut_down()
        writable.set()
        await serving

        got = b"".join(message.get("body", b"") for message in sent)
        assert got == EVENTS[0] + large[: len(got) - len(EVENTS[0])]
        assert len(EVENTS[0]) < len(got) < len(EVENTS[0] + large)
        assert sent[-1]["more_body"]
