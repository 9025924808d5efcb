"""Bodies that are no request: 400 with an error object, quickly, without a worker, and without harm to anybody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from gateway.clock import SystemClock
from gateway.log import EventLog
from gateway.types import Endpoint, Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Script
from tests.corpus.envelopes import error_of
from tests.corpus.relayed import Relay, Relayed
from tests.proxy.raw_client import CHAT, Answer, ask, chat, connect, post, request

pytestmark = pytest.mark.anyio

ROUTES = [endpoint.value for endpoint in Endpoint if endpoint is not Endpoint.AUDIO] + ["/v1/audio/speech"]
SECRET = "s3cr3t-" * 40
"""Text that is long enough to be noticed when a message echoes it."""


def strict_worker(received: RecordedRequest) -> Script:
    """Judges content types as vLLM does."""
    media_type = (received.header("content-type") or "").partition(";")[0].strip().lower()
    return scripts.chat_json() if media_type == "application/json" else scripts.ERRORS["bad-request"]


async def ask_all(gate: Relayed, requests: Sequence[bytes]) -> list[Answer]:
    """One after the other on one connection: none of them may cost the connection."""
    async with connect(gate.port) as client:
        answers = []
        for data in requests:
            client.send(data)
            answers.append(await client.answer())
        return answers


async def well(gate: Relayed) -> None:
    """A normal request is still served."""
    assert 200 == (await ask(gate.port, post(CHAT, chat(stream=False)))).status


def never_logged(gate: Relayed, text: str) -> None:
    """No canonical line repeats what a client sent, and every line can be written."""
    lines: list[bytes] = []
    log = EventLog(lines.append, SystemClock())
    for record in gate.served.records.finished_records if gate.served is not None else ():
        log.request(record)
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert not any(text.encode() in line for line in lines)


MALFORMED = {
    "no-json": b"{not json",
    "unterminated": b'{"model":"sim","messages":[',
    "empty": b"",
    "space": b" \n",
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "number": b"1",
    "trailing": b'{"model":"sim"} {}',
    "bom": b'\xef\xbb\xbf{"model":"sim"}',
    "nul": b'{"model":"sim"}\x00',
    "control-character": b'{"model":"sim","x":"a\x01b"}',
    "single-quotes": b"{'model':'sim'}",
    "secret": b'{"model":"sim","x":"' + SECRET.encode() + b"}",
    "stream-word": b'{"model":"sim","stream":"yes"}',
    "stream-number": b'{"model":"sim","stream":1}',
    "two-models": b'{"model":"sim","model":"other"}',
    "two-streams": b'{"stream":true,"model":"sim","stream":false}',
    "hidden-second-model": b'{"model":"sim","mod\\u0065l":"other"}',
}
BAD_MODEL = {
    "absent": b"{}",
    "null": b'{"model":null}',
    "number": b'{"model":5}',
    "list": b'{"model":["sim"]}',
    "object": b'{"model":{"a":1}}',
    "empty": b'{"model":""}',
}


@pytest.mark.parametrize("path", ROUTES)
async def test_c68_malformed_bodies_are_refused(relay: Relay, path: str) -> None:
    """400 in the family's envelope on every route; the text is not echoed; the connection and the server live on."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answers = await ask_all(gate, [post(path, body) for body in MALFORMED.values()])

        for name, answer in zip(MALFORMED, answers, strict=True):
            error = error_of(answer, 400, path=path)
            assert "invalid_request_error" == error["type"], name
            assert path.startswith("/v1/messages") or error["code"], name
            assert SECRET[:20] not in error["message"]
        assert [] == worker.requests
        await well(gate)
        never_logged(gate, SECRET[:20])


@pytest.mark.parametrize("path", ROUTES)
async def test_c68_a_model_that_is_none_is_named(relay: Relay, path: str) -> None:
    """A missing or misshapen model is 400 with param `model`; one that nobody serves is 404 `model_not_found`."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answers = await ask_all(gate, [post(path, body) for body in BAD_MODEL.values()])
        unknown = await ask(gate.port, post(path, {"model": "nope"}))

        for answer in answers:
            error = error_of(answer, 400, path=path)
            assert "invalid_request_error" == error["type"]
            assert path.startswith("/v1/messages") or "model" == error["param"]
        error = error_of(unknown, 404, path=path)
        if path.startswith("/v1/messages"):
            assert "not_found_error" == error["type"]
        else:
            assert ("invalid_request_error", "model", "model_not_found") == (
                error["type"],
                error["param"],
                error["code"],
            )
        assert [] == worker.requests
        await gate.ended(Outcome.CLIENT_ERROR)
        assert [] == gate.blamed()
        await well(gate)


@pytest.mark.parametrize("length", [300, 1_000_000])
async def test_c68_a_long_model_name_is_not_echoed(relay: Relay, length: int) -> None:
    """At most two hundred characters of it stand in the answer."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, {"model": "m" * length}))

        error_of(answer, 400, 404)
        assert b"m" * 201 not in answer.body
        assert [] == worker.requests
        await well(gate)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/xml", "json", ""]
)
async def test_c68_other_content_types_are_refused(relay: Relay, content_type: str | None) -> None:
    """Whether the gateway or the worker says so: 400 with an error object."""
    headers = {} if content_type is None else {"content-type": content_type}
    body = json.dumps(chat(stream=False)).encode()
    async with FaultServer(strict_worker) as worker, relay(worker) as gate:
        answer = await ask(gate.port, request("POST", CHAT, headers, body))

        assert "invalid_request_error" == error_of(answer, 400)["type"]
        await gate.ended(Outcome.CLIENT_ERROR)
        await well(gate)


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/json;x=y"]
)
async def test_c68_spellings_of_the_right_content_type_are_accepted(relay: Relay, content_type: str) -> None:
    """Parameters and case do not matter."""
    async with FaultServer(strict_worker) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=False), {"content-type": content_type}))

        assert 200 == answer.status
        assert content_type == worker.requests[0].header("content-type")


BAD_TEXT = {
    "ff": b'{"model":"sim","messages":[],"x":"\xff"}',
    "cut": b'{"model":"sim","messages":[],"x":"\xe2\x82"}',
    "overlong": b'{"model":"sim","messages":[],"x":"\xc0\x80"}',
    "cesu-surrogates": b'{"model":"sim","messages":[],"x":"\xed\xa0\xbd\xed\xb8\x80"}',
    "utf-16": '{"model":"sim","messages":[]}'.encode("utf-16"),
    "utf-16-le": '{"model":"sim","messages":[]}'.encode("utf-16-le"),
    "utf-32": '{"model":"sim","messages":[]}'.encode("utf-32"),
    "in-model": b'{"model":"s\xffm","messages":[]}',
    "in-key": b'{"model":"sim","\xff":[]}',
    "outside": b'{"model":"sim",\xff"messages":[]}',
    "large": b'{"model":"sim","messages":[],"x":"' + b"a" * 2_000_000 + b'\xff"}',
}


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_c69_bodies_that_are_no_utf8_are_refused(relay: Relay, path: str) -> None:
    """400 (a worker would fail on them in ways of its own), whatever charset the header claims; lines are written."""
    claimed = {"content-type": "application/json; charset=latin-1"}
    requests = [post(path, body) for body in BAD_TEXT.values()] + [post(path, BAD_TEXT["ff"], claimed)]
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        for answer in await ask_all(gate, requests):
            error_of(answer, 400, path=path)

        assert [] == worker.requests
        await well(gate)
        never_logged(gate, "\xff")


@pytest.mark.parametrize("cut_every", [0, 1])
async def test_c69_broken_text_from_a_worker_is_relayed(relay: Relay, cut_every: int) -> None:
    """The gateway does not judge the text of an answer: bytes in, bytes out, and counted as what it is."""
    stream = frames.ChatStream()
    broken = stream.content("?").replace(b"?", b"\xff\xc0\x80\xed\xa0\xbd")
    events = [stream.role(), broken, stream.content("a"), stream.finish(), frames.DONE]
    async with FaultServer(scripts.stream(events, cut_every=cut_every)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert b"".join(events) == answer.body
        assert answer.complete
        await gate.ended(Outcome.OK)
        never_logged(gate, "\xff")


async def test_c69_broken_text_in_a_workers_error_is_made_valid(relay: Relay) -> None:
    """An error body is the gateway's own JSON, so it is valid whatever the worker wrote."""
    script = scripts.answer(400, b'{"error":{"message":"bad \xff\xc0\x80 text","type":"BadRequestError","code":400}}')
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert "bad" in error_of(answer, 400)["message"]
        assert answer.body.isascii()
        never_logged(gate, "\xff")


DEEP = {
    "arrays": b'{"model":"sim","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects": b'{"model":"sim","x":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    "schema": b'{"model":"sim","tools":[{"type":"function","function":{"name":"f","parameters":'
    + b'{"type":"object","properties":{"a":' * 5000
    + b"{}"
    + b"}}" * 5000
    + b"}}]}",
    "unclosed": b'{"model":"sim","x":' + b"[" * 100_000,
    "behind-strings": b'{"model":"sim","x":["\\\\","]]]]\\"",' + b"[" * 2000 + b"]" * 2000 + b"]}",
}


@pytest.mark.parametrize("name", DEEP)
async def test_c70_deep_bodies_are_refused(relay: Relay, name: str) -> None:
    """400 without recursion and without a worker, while another request is served."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer, _ = await asyncio.gather(ask(gate.port, post(CHAT, DEEP[name])), well(gate))

        error_of(answer, 400)
        assert 1 == len(worker.requests)
        await well(gate)


async def test_c70_a_million_keys_are_refused(relay: Relay) -> None:
    """What would cost every process behind it seconds does not get past the gateway."""
    body = b'{"model":"sim","x":{' + b",".join(b'"k%d":0' % number for number in range(1_000_000)) + b"}}"
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer, _ = await asyncio.gather(ask(gate.port, post(CHAT, body)), well(gate))

        error_of(answer, 400)
        assert 1 == len(worker.requests)


async def test_c70_the_limit_of_nesting_is_the_configured_one(relay: Relay) -> None:
    """At the limit a body passes, one level above it does not; brackets in strings do not count."""
    limit = 200
    inner = limit - 1

    def body(levels: int) -> bytes:
        return b'{"model":"sim","x":' + b"[" * levels + b"]" * levels + b"}"

    quoted = b'{"model":"sim","x":"' + b"[{" * 10_000 + b'"}'
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answers = await ask_all(gate, [post(CHAT, data) for data in (body(inner), body(inner + 1), quoted)])

        assert [200, 400, 200] == [answer.status for answer in answers]
        assert [body(inner), quoted] == [received.body for received in worker.requests]


SURROGATES = [
    b'{"model":"sim","messages":[{"role":"user","content":"\\ud83d"}]}',
    b'{"model":"sim","messages":[{"role":"user","content":"\\ude00\\ud83d x \\uDBFF"}]}',
    b'{"model":"sim","messages":[{"role":"user","content":"\\ud83d\\n"}],"\\udc00":1}',
]


async def test_c71_lone_surrogates_from_a_client_are_relayed(relay: Relay) -> None:
    """They are valid for vLLM's reader, so they are the worker's business: bytes unchanged."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answers = await ask_all(gate, [post(CHAT, body) for body in SURROGATES])

        assert SURROGATES == [received.body for received in worker.requests]
        assert [200] * len(SURROGATES) == [answer.status for answer in answers]


async def test_c71_a_lone_surrogate_in_a_name_is_an_unknown_model(relay: Relay) -> None:
    """The error and the log line can be written although the name cannot be encoded."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, b'{"model":"\\ud83d","messages":[]}'))

        error_of(answer, 400, 404)
        assert [] == worker.requests
        never_logged(gate, "\ud83d".encode("utf-8", "backslashreplace").decode())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c71_lone_surrogates_from_a_worker_are_relayed(relay: Relay, stream: bool) -> None:
    """Also split in two halves over two events, as token-wise output may be."""
    chunks = frames.ChatStream()
    halves = [chunks.content("?").replace(b"?", half) for half in (b"\\ud83d", b"\\ude00", b"\\ud83d")]
    events = [chunks.role(), *halves, chunks.finish(), chunks.usage(), frames.DONE]
    body = frames.compact(frames.chat_body("?")).replace(b"?", b"\\ud83d")
    script = scripts.stream(events) if stream else scripts.answer(200, body)
    extra = {"stream_options": {"include_usage": True}} if stream else {}
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=stream, **extra)))

        assert (b"".join(events) if stream else body) == answer.body
        record = await gate.ended(Outcome.OK)
        assert record is None or (22, 3) == (record.prompt_tokens, record.output_tokens)
