"""Errors: one envelope whatever shape the worker's had, and events that the strictest clients can read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.message_frames import ResponsesStream
from loadtest.servers.steps import Fin, Gate, Reset, Script, Step
from tests.corpus.envelopes import error_event_of, error_of
from tests.corpus.expectations import read_events
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, Answer, ask, chat, connect, post
from tests.proxy.served import model_policy

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
FAILED = (Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_INCOMPLETE)
TOLD = "what went wrong"
HTML = (("content-type", "text/html"),)
PLAIN = (("content-type", "text/plain"),)
SHAPES: dict[str, tuple[object, tuple[tuple[str, str], ...]]] = {
    "vllm": (frames.error_object(TOLD, "BadRequestError", 400, "messages"), ()),
    "flat": ({"object": "error", "message": TOLD, "type": "BadRequestError", "param": None, "code": 400}, ()),
    "detail-list": ({"detail": [{"loc": ["body", "n"], "msg": TOLD, "type": "x", "input": "s3cr3t"}]}, ()),
    "detail-text": ({"detail": TOLD}, ()),
    "error-text": ({"error": TOLD}, ()),
    "openai": ({"error": {"message": TOLD, "type": "invalid_request_error", "param": None, "code": None}}, ()),
    "anthropic": ({"type": "error", "error": {"type": "invalid_request_error", "message": TOLD}}, ()),
    "html": (b"<html><body>nginx at 10.0.0.7</body></html>", HTML),
    "text": (TOLD.encode(), PLAIN),
    "json-called-text": (json.dumps({"error": {"message": TOLD}}).encode(), PLAIN),
    "text-called-json": (TOLD.encode(), ()),
    "cut-json": (b'{"error":{"message":"what we', ()),
    "null": (None, ()),
    "list": ([], ()),
    "empty": (b"", ()),
    "error-null": ({"error": None}, ()),
    "numbers": ({"error": {"message": 5, "type": 6, "param": 7, "code": 8}}, ()),
    "nested": ({"error": {"message": {"a": TOLD}, "type": ["x"], "param": {}, "code": {}}}, ()),
}
SAYS_WHY = (
    "vllm",
    "flat",
    "detail-list",
    "detail-text",
    "error-text",
    "openai",
    "anthropic",
    "text",
    "json-called-text",
)
STATUSES = (400, 401, 403, 404, 413, 422, 429, 500, 501, 502, 503, 504)


def script_for(status: int, shape: str) -> Script:
    """An error answer."""
    body, headers = SHAPES[shape]
    return scripts.answer(status, body, content=headers) if headers else scripts.answer(status, body)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", RESPONSES])
async def test_c72_every_shape_becomes_the_envelope(relay: Relay, shape: str, path: str) -> None:
    """The right status, JSON, all members, the worker's reason where it gave one; 401 and 403 are ours: 502."""
    answers: list[Script] = [script_for(status, shape) for status in STATUSES for _ in range(2)]
    async with FaultServer(*answers) as worker, relay(worker) as gate, connect(gate.port) as client:
        for status in STATUSES:
            found = []
            for stream in (True, False):
                client.send(post(path, {**chat(stream=stream), "input": "hi", "max_tokens": 5}))
                found.append(await client.answer())
            expected = 502 if status in (401, 403) else status
            errors = [error_of(answer, expected, path=path) for answer in found]

            assert errors[0] == errors[1]
            assert b"10.0.0.7" not in found[0].body
            assert b"s3cr3t" not in found[0].body
            if shape in SAYS_WHY and status in (400, 404, 413, 422, 429):
                assert TOLD in errors[0]["message"]
            if path == CHAT and status >= 500:
                assert isinstance(errors[0]["code"], str)
        assert 2 * len(STATUSES) == len(worker.requests)
        await gate.idle()


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (404, "invalid_request_error", "not_found"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "requests", "rate_limit_exceeded"),
        (500, "server_error", "upstream_error"),
        (503, "server_error", "upstream_overloaded"),
    ],
)
async def test_c72_types_and_codes_are_openais(relay: Relay, status: int, kind: str, code: str | None) -> None:
    """vLLM's class names and integer codes are replaced by what clients switch on."""
    script = scripts.error(status, TOLD, "SomePythonError")
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        error = error_of(answer, status)
        assert (kind, code) == (error["type"], error["code"])


async def test_c72_a_workers_retry_after_is_kept_within_reason(relay: Relay) -> None:
    """A short pause is kept; a longer one, also as a date, is shortened to what SDKs still accept."""
    pauses = ["7", "0.5", "3600", "Wed, 21 Oct 2030 07:28:00 GMT", "-1", "x"]
    answers = [scripts.error(429, TOLD, "x", None, (("retry-after", pause),)) for pause in pauses]
    async with FaultServer(*answers) as worker, relay(worker) as gate, connect(gate.port) as client:
        found = []
        for _ in pauses:
            client.send(post(CHAT, chat()))
            found.append((await client.answer()).header("retry-after"))

        assert ["7", "1", "60", "60", None, None] == found
        assert len(worker.requests) == len(pauses)


STREAM = ResponsesStream()
BEGUN = STREAM.events()[:6]
"""Created, in progress, item, part, two deltas: sequence numbers 0 to 5."""
ASKED: dict[str, Any] = {"model": "sim", "input": "hi", "stream": True}


def last_payload(answer: Answer) -> dict[str, Any]:
    """The last event, which must be a Responses `error` that a closed schema accepts."""
    assert answer.complete
    event = answer.events[-1]
    assert event.startswith(b"event: error\n")
    payload = error_event_of(event)
    assert {"type", "code", "message", "param", "sequence_number"} == set(payload)
    assert "error" == payload["type"]
    assert isinstance(payload["code"], str)
    assert isinstance(payload["message"], str)
    assert payload["code"]
    assert payload["message"]
    assert isinstance(payload["param"], str | None)
    return payload


@pytest.mark.parametrize("end", [Reset(), Fin(), None], ids=["reset", "fin", "clean-end"])
@pytest.mark.parametrize("received", [1, 4, 6])
async def test_c86_a_cut_responses_stream_ends_with_an_error(relay: Relay, end: Step | None, received: int) -> None:
    """What came is relayed, then `error` with the next sequence number; nothing claims completion; it is logged."""
    script = scripts.stream([*BEGUN[:received], Gate("cut")], end=end)
    async with FaultServer(script) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(RESPONSES, ASKED))
        answer = await client.head()
        assert 200 == answer.status
        await read_events(client, answer, received)
        worker.release("cut")
        await client.rest(answer)

        assert BEGUN[:received] == answer.events[:-1]
        assert received == last_payload(answer)["sequence_number"]
        assert b"response.completed" not in answer.body
        assert b"[DONE]" not in answer.body
        record = await gate.ended(*FAILED)
        assert record is None or (record.status, bool(record.detail)) == (200, True)


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
async def test_c86_every_terminal_event_ends_a_stream(relay: Relay, status: str) -> None:
    """A stream that the worker itself ended, well or not, gets nothing added."""
    events = [*BEGUN, *STREAM.closing("Paris.", 6, status)]
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(RESPONSES, ASKED))

        assert events == answer.events
        await gate.ended(*((Outcome.UPSTREAM_ERROR,) if status == "failed" else (Outcome.OK,)))


MADE: dict[str, tuple[list[bytes | Step], Step | None]] = {
    "reset": ([*BEGUN, Gate("cut")], Reset()),
    "clean-end": ([*BEGUN], None),
    "idle": ([*BEGUN, Gate("never")], None),
    "shutdown": ([*BEGUN, Gate("never")], None),
    "flat-error": ([*BEGUN, frames.flat_error_event(), frames.DONE], None),
    "text-error": ([*BEGUN, frames.data_event(b'{"error":"Unauthorized"}'), frames.DONE], None),
}


@pytest.mark.parametrize("case", MADE)
async def test_c87_error_events_fit_a_closed_schema(relay: Relay, case: str) -> None:
    """Whatever failed: string code and message, param present, the next sequence number, no address in it."""
    events, end = MADE[case]
    policy = model_policy(idle_s=0.3 if case == "idle" else 60.0)
    async with (
        FaultServer(scripts.stream(events, end=end)) as worker,
        relay(worker, policy=policy) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(RESPONSES, ASKED))
        answer = await client.head()
        assert 200 == answer.status
        await read_events(client, answer, len(BEGUN))
        worker.release("cut")
        if case == "shutdown" and gate.served is not None:
            gate.served.relay.shut_down()
        await client.rest(answer)

        assert BEGUN == answer.events[:-1]
        assert 6 == last_payload(answer)["sequence_number"]
        assert b"127.0.0.1" not in answer.events[-1]
        await gate.ended(*FAILED, Outcome.UPSTREAM_TIMEOUT, Outcome.SHUTDOWN)


@pytest.mark.parametrize("case", MADE)
async def test_c87_error_events_of_chat_have_a_code_too(relay: Relay, case: str) -> None:
    """The same on chat: an `error` object whose type, message and code are strings."""
    begun = frames.ChatStream().events(usage=False)[:3]
    events, end = MADE[case]
    script = scripts.stream([*begun, *events[len(BEGUN) :]], end=end)
    policy = model_policy(idle_s=0.3 if case == "idle" else 60.0)
    async with FaultServer(script) as worker, relay(worker, policy=policy) as gate, connect(gate.port) as client:
        client.send(post(CHAT, chat()))
        answer = await client.head()
        assert 200 == answer.status
        await read_events(client, answer, len(begun))
        worker.release("cut")
        if case == "shutdown" and gate.served is not None:
            gate.served.relay.shut_down()
        await client.rest(answer)

        assert answer.complete
        assert begun == answer.events[:-1]
        error = error_event_of(answer.events[-1])["error"]
        assert {"message": str, "type": str, "param": type(error["param"]), "code": str} == {
            name: type(value) for name, value in error.items()
        }
        assert all(error[name] for name in ("message", "type", "code"))


UNTOLD = {"flat": frames.flat_error_event(), "text": frames.data_event(b'{"error":"Unauthorized"}')}


@pytest.mark.parametrize("kind", UNTOLD)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("cut_every", [0, 1, 7, 61, 997])
async def test_c87_what_came_before_an_error_does_not_depend_on_cuts(
    relay: Relay, kind: str, end: bytes, cut_every: int
) -> None:
    """An error that no SDK would recognise is told in their form, behind every good event, however the reads fell."""
    begun = frames.ChatStream().events(usage=False)[:4]
    events = [event.replace(b"\n", end) for event in (*begun, UNTOLD[kind], frames.DONE)]
    # In one write, so that without cuts everything comes in one read.
    script = scripts.stream([b"".join(events)], cut_every=cut_every)
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert (200, True) == (answer.status, answer.complete)
        good = b"".join(events[:4])
        assert good == answer.body[: len(good)]
        assert {"message", "type", "param", "code"} == set(error_event_of(answer.body[len(good) :])["error"])
        await gate.ended(Outcome.UPSTREAM_ERROR)


@pytest.mark.parametrize("kind", UNTOLD)
@pytest.mark.parametrize("cut_every", [0, 1, 7])
async def test_c87_an_error_as_first_event_is_a_status(relay: Relay, kind: str, cut_every: int) -> None:
    """Nothing has been answered yet, so the client gets the status that the error stands for."""
    script = scripts.stream([UNTOLD[kind] + frames.DONE], cut_every=cut_every)
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        error = error_of(answer, 503 if kind == "flat" else 502)
        assert isinstance(error["code"], str)
        await gate.ended(Outcome.UPSTREAM_ERROR)
