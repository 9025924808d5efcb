"""Large, slow and multipart bodies: whole or refused in a way that the client can read."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace

import pytest

from gateway.config.settings import Limits
from gateway.proxy.policy import RelayPolicy
from gateway.types import Outcome, Phase
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from tests.corpus.envelopes import error_of
from tests.corpus.relayed import Relay, Relayed
from tests.proxy.raw_client import CHAT, Answer, ask, chat, connect, post, request

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
TRANSCRIPTIONS = "/v1/audio/transcriptions"


def image_request(size: int) -> bytes:
    """A chat request with an image of so many bytes as a data URL."""
    url = b"data:image/png;base64," + b"iVBORw0KGgo" * (size // 11)
    part = b'{"type":"image_url","image_url":{"url":"%b"}}' % url
    return b'{"model":"sim","messages":[{"role":"user","content":[%b]}],"stream":false}' % part


def chunked(data: bytes, size: int) -> bytes:
    """A body in chunks."""
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def head(path: str, *lines: str) -> bytes:
    """A POST's head with these header lines."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: gateway.test", *lines, "", ""]).encode()


async def well(gate: Relayed) -> None:
    """A normal request is still served."""
    assert 200 == (await ask(gate.port, post(CHAT, chat(stream=False)))).status


def test_c73_the_default_limit_is_large_enough() -> None:
    """Base64 images fit: at least what vLLM's own front end takes."""
    assert 32 * MIB <= Limits().max_body_bytes == RelayPolicy().max_body_bytes


@pytest.mark.parametrize("size_mib", [5, 20, 40])
async def test_c73_images_reach_the_worker(relay: Relay, size_mib: int) -> None:
    """A body of tens of megabytes arrives whole, while another request is served."""
    body = image_request(size_mib * MIB)
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer, _ = await asyncio.gather(ask(gate.port, post(CHAT, body)), well(gate))

        assert 200 == answer.status
        arrived = max(worker.requests, key=lambda received: len(received.body))
        assert hashlib.sha256(body).digest() == hashlib.sha256(arrived.body).digest()


def limited(policy: RelayPolicy) -> RelayPolicy:
    """One megabyte at most."""
    return replace(policy, max_body_bytes=MIB)


def too_large(answer: Answer, path: str) -> None:
    """413 in the family's envelope."""
    error = error_of(answer, 413, path=path)
    if path == CHAT:
        assert ("invalid_request_error", "request_too_large") == (error["type"], error["code"])
    else:
        assert "request_too_large" == error["type"]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_c73_an_announced_length_over_the_limit_is_refused_at_once(relay: Relay, path: str) -> None:
    """The client learns it before it has sent the body, and need not send it."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, relay_policy=limited) as gate,
        connect(gate.port) as client,
    ):
        client.send(head(path, "content-type: application/json", f"content-length: {MIB + 1}"))
        too_large(await client.answer(), path)

        assert [] == worker.requests
        await gate.ended(Outcome.CLIENT_ERROR)
        await well(gate)


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_c73_a_client_that_sends_it_all_can_read_the_413(relay: Relay, framing: str) -> None:
    """The answer arrives whole even if the client reads only after its last byte: no reset throws it away."""
    body = image_request(20 * MIB)
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, relay_policy=limited) as gate,
        connect(gate.port) as client,
    ):
        json_type = "content-type: application/json"
        if framing == "chunked":
            data = head(CHAT, json_type, "transfer-encoding: chunked") + chunked(body, 65_536)
        else:
            data = head(CHAT, json_type, f"content-length: {len(body)}") + body
        for at in range(0, len(data), 262_144):
            client.send(data[at : at + 262_144])
            await client.writer.drain()
        too_large(await client.answer(), CHAT)

        assert [] == worker.requests
        await gate.idle()
        await well(gate)


async def test_c73_a_chunked_body_is_refused_midway(relay: Relay) -> None:
    """Without an announced length the limit acts as soon as it is passed, not at the end."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, relay_policy=limited) as gate,
        connect(gate.port) as client,
    ):
        client.send(head(CHAT, "content-type: application/json", "transfer-encoding: chunked"))
        piece = b"x" * 65_536
        for _ in range(MIB // len(piece) + 1):
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        too_large(await client.answer(), CHAT)

        assert [] == worker.requests
        await gate.ended(Outcome.CLIENT_ERROR)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_c74_a_body_that_stops_is_408(relay: Relay, path: str) -> None:
    """A client that goes quiet in its body holds its memory only for the configured pause, and is told."""

    def impatient(policy: RelayPolicy) -> RelayPolicy:
        return replace(policy, body_stall_s=0.2)

    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, relay_policy=impatient) as gate,
        connect(gate.port) as client,
    ):
        client.send(head(path, "content-type: application/json", "content-length: 1000") + b'{"model":"sim"')
        answer = await client.answer()

        error_of(answer, 408, path=path)
        assert [] == worker.requests
        await gate.ended(Outcome.CLIENT_ERROR)
        await gate.idle()
        assert [] == gate.blamed()


async def test_c74_a_body_that_trickles_is_408(relay: Relay) -> None:
    """One byte now and then never stalls for long, so there is a limit on the whole as well."""

    def impatient(policy: RelayPolicy) -> RelayPolicy:
        return replace(policy, body_stall_s=5.0, body_total_s=0.4)

    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, relay_policy=impatient) as gate,
        connect(gate.port) as client,
    ):
        client.send(head(CHAT, "content-type: application/json", "content-length: 100000"))
        answering = asyncio.create_task(client.answer())
        while not answering.done():
            client.send(b" ")
            await asyncio.wait([answering], timeout=0.02)

        error_of(answering.result(), 408)
        assert [] == worker.requests
        await gate.idle()


async def test_c74_a_head_that_trickles_is_given_up(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a request there is nobody to answer: the connection is closed."""
    monkeypatch.setattr("gateway.api.server_protocol.HEAD_TIMEOUT_S", 0.2)
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker) as gate,
        connect(gate.port) as client,
        connect(gate.port) as silent,
    ):
        client.send(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode())
        ending = asyncio.create_task(client.at_end())
        while not ending.done():
            client.send(b"x: y\r\n")
            await asyncio.wait([ending], timeout=0.02)
        assert ending.result()
        assert await silent.at_end()
        assert [] == worker.requests
        await well(gate)


FILE = bytes(range(256)) * 64 + b"\r\n--boundary-X" + b"\r\n--" + b"\x00\xff" * 1000 + b"\r\n--boundar\r\n"


def form(boundary: str, parts: list[tuple[str, bytes]]) -> bytes:
    """A multipart body of parts given by what follows `form-data` and their content."""
    opened = b"--" + boundary.encode()
    pieces = [
        b"%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (opened, disposition.encode(), content)
        for disposition, content in parts
    ]
    return b"".join(pieces) + opened + b"--\r\n"


AUDIO = ('name="file"; filename="aufnahme-ä-안.wav"\r\nContent-Type: audio/wav', FILE)
MODEL = ('name="model"', b"sim")
FORMS = {
    "model-last": ("boundary", [AUDIO, MODEL]),
    "model-first": ("boundary", [MODEL, AUDIO]),
    "model-between": ("boundary", [('name="prompt"', b'name="model"\r\n\r\nother'), AUDIO, MODEL, ('name="n"', b"")]),
    "odd-boundary": ("--=_Part'()+_,-./:=?", [AUDIO, MODEL]),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_c84_forms_reach_the_worker(relay: Relay, name: str, framing: str) -> None:
    """Body and content type byte for byte, wherever the model stands, however the client frames it."""
    boundary, parts = FORMS[name]
    body = form(boundary, parts)
    content_type = f'multipart/form-data; boundary="{boundary}"'
    reply = scripts.answer(200, b'{ "text": "\xc3\xa4" }')
    async with FaultServer(reply) as worker, relay(worker) as gate, connect(gate.port) as client:
        if framing == "chunked":
            client.send(head(TRANSCRIPTIONS, f"content-type: {content_type}", "transfer-encoding: chunked"))
            client.send(chunked(body, 1000))
        else:
            client.send(post(TRANSCRIPTIONS, body, {"content-type": content_type}))
        answer = await client.answer()

        received = worker.requests[0]
        assert body == received.body
        assert (TRANSCRIPTIONS, content_type) == (received.target, received.header("content-type"))
        assert str(len(body)) == received.header("content-length")
        assert (200, b'{ "text": "\xc3\xa4" }') == (answer.status, answer.body)
        await gate.ended(Outcome.OK)


async def test_c84_a_large_form_is_whole(relay: Relay) -> None:
    """Thirty megabytes of sound, model behind it."""
    body = form("b0", [(AUDIO[0], FILE * (30 * MIB // len(FILE))), MODEL])
    async with FaultServer(scripts.answer(200, {"text": ""})) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(TRANSCRIPTIONS, body, {"content-type": "multipart/form-data; boundary=b0"}))

        assert 200 == answer.status
        assert hashlib.sha256(body).digest() == hashlib.sha256(worker.requests[0].body).digest()


@pytest.mark.parametrize("end", [frames.DONE, b""], ids=["done", "no-done"])
async def test_c84_a_form_may_ask_for_a_stream(relay: Relay, end: bytes) -> None:
    """`stream=true` as a form field: the events are relayed as they come."""
    body = form("b0", [AUDIO, ('name="stream"', b"true"), MODEL])
    chunk = b'data: {"object":"transcription.chunk","choices":[{"delta":{"content":"%b"},"finish_reason":%b}]}\n\n'
    events = [chunk % (b"\xc3\xa4", b"null"), chunk % (b"", b'"stop"')]
    events += [end] if end else []
    async with FaultServer(scripts.stream(scripts.gated(events, {1: "go"}))) as worker, relay(worker) as gate:
        async with connect(gate.port) as client:
            client.send(post(TRANSCRIPTIONS, body, {"content-type": "multipart/form-data; boundary=b0"}))
            answer = await client.head()
            assert events[0] == await client.chunk(answer)
            worker.release("go")
            await client.rest(answer)

        assert b"".join(events) == answer.body
        assert "text/event-stream" in (answer.header("content-type") or "")
        record = await gate.ended(Outcome.OK)
        assert record is None or record.stream


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=other"]
)
async def test_c84_a_form_without_its_boundary_is_refused(relay: Relay, content_type: str) -> None:
    """400 with an error object, no worker, no hang."""
    async with FaultServer(scripts.answer(200, {"text": ""})) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(TRANSCRIPTIONS, form("b0", [AUDIO, MODEL]), {"content-type": content_type}))

        error_of(answer, 400)
        assert [] == worker.requests
        await well(gate)


async def test_c84_a_form_without_a_model_is_refused(relay: Relay) -> None:
    """It names the missing field; a model that nobody serves is 404, as in JSON."""
    bodies = [form("b0", [AUDIO]), form("b0", [AUDIO, ('name="model"', b"nope")]), form("b0", [MODEL, AUDIO, MODEL])]
    headers = {"content-type": "multipart/form-data; boundary=b0"}
    async with FaultServer(scripts.answer(200, {"text": ""})) as worker, relay(worker) as gate:
        answers = [await ask(gate.port, request("POST", TRANSCRIPTIONS, headers, body)) for body in bodies]

        errors = [error_of(answer, 400, 404) for answer in answers]
        assert [400, 404, 400] == [answer.status for answer in answers]
        assert ["model", "model", "model"] == [error["param"] for error in errors]
        assert "model_not_found" == errors[1]["code"]
        assert [] == worker.requests
        assert json.loads(answers[0].body)


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_c84_a_cut_upload_reaches_nobody(relay: Relay, framing: str) -> None:
    """A client that leaves in the middle of its file: no worker gets half of it as if it were all."""
    body = form("b0", [MODEL, AUDIO])
    half = body[: len(body) // 2]
    lines = ["content-type: multipart/form-data; boundary=b0"]
    if framing == "chunked":
        data = head(TRANSCRIPTIONS, *lines, "transfer-encoding: chunked") + chunked(half, 1000).removesuffix(
            b"0\r\n\r\n"
        )
    else:
        data = head(TRANSCRIPTIONS, *lines, f"content-length: {len(body)}") + half
    async with FaultServer(scripts.answer(200, {"text": ""})) as worker, relay(worker) as gate:
        async with connect(gate.port) as client:
            client.send(data)
            client.close()
            record = await gate.ended(Outcome.CLIENT_CLOSED)
        await gate.idle()

        assert record is None or record.disconnect is Phase.BODY
        assert [] == worker.requests
