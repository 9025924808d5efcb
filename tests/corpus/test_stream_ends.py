"""How streams end: a failed one never looks like a complete one, and the client is told in its family's own form."""

from __future__ import annotations

import json

import openai
import pytest

from gateway.proxy.policy import ModelPolicy
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.message_frames import MessagesStream, ResponsesStream
from loadtest.servers.steps import Fin, Gate, Reset, Stall, Step
from tests.corpus.expectations import (
    EVENTS,
    error_in,
    error_object,
    no_invented_success,
    nothing_internal,
    read_events,
    sdk,
)
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, ask, chat, connect, post
from tests.proxy.served import model_policy

pytestmark = pytest.mark.anyio

FAILED = (Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_INCOMPLETE)
USER = [{"role": "user", "content": "hi"}]
BUSY = frames.error_event(code=503)


@pytest.mark.parametrize("cut", [1, 3, 5], ids=["after-role", "mid-content", "before-done"])
async def test_c01_a_reset_stream_is_told_as_an_error(relay: Relay, cut: int) -> None:
    """Exactly the received events, one error event, the end of the body; nothing invented, nothing asked twice."""
    script = scripts.stream([*EVENTS[:cut], Gate("cut")], end=Reset())
    async with (
        FaultServer(script) as worker,
        FaultServer(script) as other,
        relay(worker, other) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        await read_events(client, answer, cut)
        worker.release("cut")
        other.release("cut")
        await client.rest(answer)

        assert answer.complete
        assert EVENTS[:cut] == answer.events[:-1]
        assert error_in(answer.events[-1])
        assert b"[DONE]" not in answer.body
        assert b'"usage"' not in answer.body
        assert len(worker.requests) + len(other.requests) == 1
        await gate.ended(*FAILED)
        await gate.idle()


async def test_c01_the_sdk_raises_on_a_reset_stream(relay: Relay) -> None:
    """Whoever iterates over the chunks learns that the answer is broken, by an API error with a code."""
    script = scripts.stream([*EVENTS[:3], Gate("cut")], end=Reset())
    async with FaultServer(script) as worker, relay(worker) as gate, sdk(gate.port) as client:
        texts: list[str | None] = []
        with pytest.raises(openai.APIError) as raised:  # noqa: PT012 - the stream fails while it is read
            async for piece in await client.chat.completions.create(model="sim", messages=USER, stream=True):
                texts.append(piece.choices[0].delta.content)
                if len(texts) == 3:
                    worker.release("cut")

        assert ["", "Par", "is"] == texts
        assert not isinstance(raised.value, openai.APIConnectionError)
        assert raised.value.code


@pytest.mark.parametrize("end", [Fin(), Reset()], ids=["fin", "rst"])
@pytest.mark.parametrize("heartbeat_s", [0, 0.05], ids=["silent", "heartbeat"])
async def test_c02_death_before_the_first_event_is_retried(relay: Relay, end: Step, heartbeat_s: float) -> None:
    """Headers alone are no answer: another worker gets the same request, and the client a whole answer."""
    script = scripts.stream([Gate("die")], end=end)
    async with (
        FaultServer(script) as dying,
        FaultServer(scripts.stream(EVENTS)) as well,
        relay(dying, well, policy=ModelPolicy(heartbeat_s=heartbeat_s)) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        await dying.reached("die")
        if heartbeat_s:
            answer = await client.head()
            await read_events(client, answer, 1)
            dying.release("die")
            await client.rest(answer)
        else:
            dying.release("die")
            answer = await client.answer()

        assert (200, True) == (answer.status, answer.complete)
        assert EVENTS == [event for event in answer.events if not event.startswith(b":")]
        assert dying.requests[0].body == well.requests[0].body
        await gate.ended(Outcome.OK)
        await gate.idle()


@pytest.mark.parametrize("end", [Fin(), Reset()], ids=["fin", "rst"])
@pytest.mark.parametrize("heartbeat_s", [0, 0.05], ids=["silent", "heartbeat"])
async def test_c02_death_before_the_first_event_is_never_an_empty_success(
    relay: Relay, end: Step, heartbeat_s: float
) -> None:
    """Without another worker: a status if none was sent, else an error event."""
    async with (
        FaultServer(scripts.stream([Gate("die")], end=end)) as dying,
        relay(dying, policy=ModelPolicy(heartbeat_s=heartbeat_s)) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        await dying.reached("die")
        if heartbeat_s:
            answer = await client.head()
            await read_events(client, answer, 1)
            dying.release("die")
            await client.rest(answer)
            assert error_in(answer.events[-1])
            assert all(event.startswith(b":") for event in answer.events[:-1])
        else:
            dying.release("die")
            answer = await client.answer()
            assert answer.status in (502, 503)
            assert error_object(answer.body)

        assert answer.complete
        no_invented_success(answer.body)
        await gate.ended(*FAILED)


async def test_c03_a_deadline_in_mid_stream_is_told(relay: Relay) -> None:
    """The gateway's own time limit ends the stream with its code and nothing of the inside."""
    script = scripts.stream(EVENTS[:3], end=Stall())
    async with FaultServer(script) as worker, relay(worker, policy=model_policy(total_s=0.3)) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.complete
        assert EVENTS[:3] == answer.events[:-1]
        assert error_in(answer.events[-1])["code"] == "upstream_timeout"
        no_invented_success(answer.body)
        nothing_internal(answer.body)
        assert str(worker.port).encode() not in answer.body
        await worker.requests[0].closed.wait()
        await gate.ended(Outcome.UPSTREAM_TIMEOUT)


async def test_c03_a_shutdown_in_mid_stream_is_told(relay: Relay) -> None:
    """A gateway that has to go says so to the streams it cuts."""
    async with (
        FaultServer(scripts.stream(EVENTS[:3], end=Stall())) as worker,
        relay(worker) as gate,
        connect(gate.port) as client,
    ):
        if gate.served is None:
            pytest.skip("the double has no shutdown")
        client.send(post(CHAT, chat()))
        answer = await client.head()
        await read_events(client, answer, 3)
        gate.served.relay.shut_down()
        await client.rest(answer)

        assert answer.complete
        assert error_in(answer.events[-1])["code"] == "shutting_down"
        no_invented_success(answer.body)
        await gate.ended(Outcome.SHUTDOWN)


@pytest.mark.interpreted
async def test_c03_a_defect_in_mid_stream_is_told(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even an exception inside the gateway becomes an error event, without the exception's text."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret of 127.0.0.1")

    async with (
        FaultServer(scripts.stream([*EVENTS[:3], Gate("end"), *EVENTS[3:]])) as worker,
        relay(worker) as gate,
        connect(gate.port) as client,
    ):
        if gate.served is None:
            pytest.skip("the double has no observer that could fail")
        client.send(post(CHAT, chat()))
        answer = await client.head()
        await read_events(client, answer, 3)
        monkeypatch.setattr("gateway.protocol.observer.StreamObserver.verdict", fail)
        worker.release("end")
        await client.rest(answer)

        assert error_in(answer.events[-1])["code"] == "internal_error"
        assert b"[DONE]" not in answer.body
        assert b"secret" not in answer.body
        nothing_internal(answer.body)
        await gate.ended(Outcome.INTERNAL)


@pytest.mark.parametrize("end", [Reset(), Fin(), None], ids=["rst", "fin", "clean"])
async def test_c04_responses_clients_are_told_in_their_form(relay: Relay, end: Step | None) -> None:
    """The last event is a numbered error event that both SDKs know."""
    events = ResponsesStream().events()[:6]
    script = scripts.stream([*events, Gate("cut")], end=end)
    async with FaultServer(script) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post("/v1/responses", {"model": "sim", "stream": True, "input": "hi"}))
        answer = await client.head()
        await read_events(client, answer, 6)
        worker.release("cut")
        await client.rest(answer)

        assert answer.complete
        assert answer.events[:6] == events
        assert len(answer.events) == 7
        kind, data = answer.events[6].split(b"\n", 1)
        told = json.loads(data.removeprefix(b"data: "))
        assert kind == b"event: error"
        assert (told["type"], told["sequence_number"]) == ("error", 6)
        assert isinstance(told["code"], str)
        assert told["message"]
        assert "param" in told
        await gate.ended(*FAILED)


async def test_c04_the_sdk_sees_a_failed_response(relay: Relay) -> None:
    """The SDK's stream of a dead worker ends with an error, not in silence."""
    script = scripts.stream(ResponsesStream().events()[:6])
    async with FaultServer(script) as worker, relay(worker) as gate, sdk(gate.port) as client:
        kinds = [event.type async for event in await client.responses.create(model="sim", input="hi", stream=True)]
        assert kinds[-1] in ("error", "response.failed")


@pytest.mark.parametrize("end", [Reset(), Fin(), None], ids=["rst", "fin", "clean"])
async def test_c04_messages_clients_are_told_in_their_form(relay: Relay, end: Step | None) -> None:
    """The last event is Anthropic's error event."""
    stream = MessagesStream()
    events = [stream.start(), stream.text("Par")]
    async with (
        FaultServer(scripts.stream([*events, Gate("cut")], end=end)) as worker,
        relay(worker) as gate,
        connect(gate.port) as client,
    ):
        client.send(post("/v1/messages", {"model": "sim", "stream": True, "max_tokens": 9, "messages": USER}))
        answer = await client.head()
        await read_events(client, answer, 3)
        worker.release("cut")
        await client.rest(answer)

        assert answer.complete
        assert answer.body.startswith(b"".join(events))
        kind, data = answer.body.removeprefix(b"".join(events)).removesuffix(b"\n\n").split(b"\n")
        told = json.loads(data.removeprefix(b"data: "))
        assert kind == b"event: error"
        assert told["type"] == "error"
        assert told["error"]["type"] in ("api_error", "overloaded_error")
        assert told["error"]["message"]
        assert b"message_stop" not in answer.body
        await gate.ended(*FAILED)


@pytest.mark.parametrize(
    ("n", "events"),
    [
        (1, EVENTS[:3]),
        (1, [*EVENTS[:3], frames.DONE]),
        (2, [*EVENTS[:2], frames.ChatStream().content("b", 1), *EVENTS[2:5]]),
        (2, [*EVENTS[:2], frames.ChatStream().content("b", 1), *EVENTS[2:]]),
    ],
    ids=["no-finish", "done-without-finish", "one-of-two", "one-of-two-done"],
)
async def test_c05_a_proper_end_without_a_finish_is_a_failure(relay: Relay, n: int, events: list[bytes]) -> None:
    """However well the framing ends, an answer with an unfinished choice is told as incomplete."""
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(n=n)))

        assert answer.complete
        assert [event for event in events if event != frames.DONE] == answer.events[:-1]
        assert error_in(answer.events[-1])["code"] == "stream_incomplete"
        assert b"[DONE]" not in answer.body
        await gate.ended(Outcome.UPSTREAM_INCOMPLETE)


async def test_c05_a_finished_answer_without_done_is_accepted(relay: Relay) -> None:
    """Pinned: with every choice finished and a proper end nothing is missing, so nothing is added."""
    async with FaultServer(scripts.stream(EVENTS[:-1])) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.complete
        assert b"".join(EVENTS[:-1]) == answer.body
        await gate.ended(Outcome.OK)


@pytest.mark.parametrize("event", [BUSY, frames.flat_error_event()], ids=["wrapped", "flat"])
async def test_c06_an_error_as_first_event_becomes_a_status(relay: Relay, event: bytes) -> None:
    """Nothing was sent yet, so the client gets the status that the error names."""
    async with FaultServer(scripts.in_band_error(event=event)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.status == 503
        assert answer.header("content-type") == "application/json"
        assert error_object(answer.body)
        await gate.ended(Outcome.UPSTREAM_ERROR)


async def test_c06_an_error_in_mid_stream_keeps_its_bytes(relay: Relay) -> None:
    """The worker's own error event reaches the client byte for byte, and the exchange counts as failed."""
    events = [*EVENTS[:3], BUSY, frames.DONE]
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.complete
        assert b"".join(events[:4]) == answer.body.removesuffix(frames.DONE)
        await gate.ended(Outcome.UPSTREAM_ERROR)


async def test_c06_a_flat_error_in_mid_stream_is_wrapped(relay: Relay) -> None:
    """SDKs pass over the flat form, so it is told in the form they know; the SDK raises."""
    events = [*EVENTS[:3], frames.flat_error_event("queue full"), frames.DONE]
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert EVENTS[:3] == answer.events[:3]
        assert error_in(answer.events[3])["message"] == "queue full"
        no_invented_success(answer.body)
        await gate.ended(Outcome.UPSTREAM_ERROR)
        async with sdk(gate.port) as client:
            with pytest.raises(openai.APIError, match="queue full"):
                async for _ in await client.chat.completions.create(model="sim", messages=USER, stream=True):
                    pass


async def test_c07_done_alone_is_no_answer(relay: Relay) -> None:
    """A worker that failed before its first token is not a success with no tokens."""
    async with (
        FaultServer(scripts.stream([frames.DONE])) as worker,
        relay(worker, policy=ModelPolicy(retries=0)) as gate,
        sdk(gate.port) as client,
    ):
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.status == 502
        assert error_object(answer.body)
        await gate.ended(*FAILED)
        with pytest.raises(openai.APIError):
            await client.chat.completions.create(model="sim", messages=USER, stream=True)


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 500, 503], ids=str)
async def test_c08_an_error_before_the_stream_is_a_status(relay: Relay, status: int) -> None:
    """Whatever was known before streaming began is said with status and JSON, as if no stream had been asked for."""
    script = scripts.error(status, "the prompt is odd", "BadRequestError", "messages", (("retry-after", "7"),))
    async with FaultServer(script) as worker, relay(worker, policy=ModelPolicy(retries=0)) as gate:
        streamed = await ask(gate.port, post(CHAT, chat(stream=True)))
        plain = await ask(gate.port, post(CHAT, chat(stream=False)))

        for answer in (streamed, plain):
            assert (status, True) == (answer.status, answer.complete)
            assert answer.header("content-type") == "application/json"
            assert "7" == answer.header("retry-after")
        assert error_object(streamed.body) == error_object(plain.body)


async def test_c08_a_prompt_over_the_context_has_its_code(relay: Relay) -> None:
    """Agents shorten their history when they see this code, streaming or not."""
    async with FaultServer(scripts.ERRORS["context-length"]) as worker, relay(worker) as gate:
        for stream in (True, False):
            answer = await ask(gate.port, post(CHAT, chat(stream=stream)))

            assert answer.status == 400
            assert error_object(answer.body)["code"] == "context_length_exceeded"


DONE_EVENTS = [
    (CHAT, EVENTS),
    ("/v1/completions", frames.CompletionStream().events(usage=False)),
    ("/v1/responses", ResponsesStream().events()),
    ("/v1/messages", MessagesStream().events()),
]


@pytest.mark.parametrize(("path", "events"), DONE_EVENTS, ids=["chat", "completions", "responses", "messages"])
async def test_c17_the_end_does_not_wait_for_the_worker(relay: Relay, path: str, events: list[bytes]) -> None:
    """After the terminal marker the client's answer ends, its connection serves on, and the worker's is freed."""
    body = {"model": "sim", "stream": True, "messages": USER, "input": "hi", "prompt": "hi", "max_tokens": 9}
    async with (
        FaultServer(scripts.stream(events, end=Stall())) as worker,
        relay(worker) as gate,
        connect(gate.port) as client,
    ):
        for _ in range(2):
            client.send(post(path, body))
            answer = await client.answer()

            assert answer.complete
            assert b"".join(events) == answer.body
        for request in worker.requests:
            await request.closed.wait()
        await gate.idle()
