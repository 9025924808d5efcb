"""HTTP/1.1 itself: hop-by-hop headers, chunked requests, 100-continue, pipelining, bytes that try to smuggle."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from gateway.errors import RequestError
from gateway.proxy.interfaces import Caller
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import JSON, response_head
from loadtest.servers.steps import Fin, Gate, Send
from tests.corpus.expectations import EVENTS, error_object
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, ask, chat, connect, post, request

pytestmark = pytest.mark.anyio

HOP_BY_HOP = (
    ("connection", "keep-alive, x-private"),
    ("keep-alive", "timeout=5"),
    ("proxy-authenticate", "Basic"),
    ("proxy-connection", "keep-alive"),
    ("te", "trailers"),
    ("trailer", "x-checksum"),
    ("upgrade", "h2c"),
    ("x-private", "1"),
)
NAMES = {name for name, _ in HOP_BY_HOP}


@pytest.mark.parametrize("status", [200, 400, 404, 429, 500, 503])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c25_hop_by_hop_headers_stay_behind(relay: Relay, status: int, stream: bool) -> None:
    """Success or failure: nothing about the worker's connection, and exactly one framing header."""
    content = b"".join(EVENTS) if stream and status == 200 else frames.compact(frames.chat_body("Paris."))
    kind = "text/event-stream" if stream and status == 200 else "application/json"
    headers = (("content-type", kind), ("transfer-encoding", "chunked"), *HOP_BY_HOP, ("x-kept", "1"))
    framed = b"%x\r\n%b\r\n0\r\nx-checksum: 1\r\n\r\n" % (len(content), content)
    script = (Send(response_head(status, headers) + framed),)
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=stream)))

        assert (status, True) == (answer.status, answer.complete)
        assert [] == [(name, value) for name, value in answer.headers if name.lower() in NAMES]
        assert 1 == len(answer.all("content-length")) + len(answer.all("transfer-encoding"))


async def test_c25_hop_by_hop_headers_of_a_request_stay_behind(relay: Relay) -> None:
    """The client's connection is none of the worker's business."""
    hop = dict(HOP_BY_HOP)
    del hop["upgrade"]  # a server may take that one at its word
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=False), {**hop, "proxy-authorization": "Basic eA=="}))

        assert answer.status == 200
        seen = {name.lower() for name, _ in worker.requests[0].headers}
        assert set() == seen & (NAMES - {"connection"} | {"proxy-authorization", "transfer-encoding"})


async def test_c26_a_chunked_request_arrives_with_one_length(relay: Relay) -> None:
    """One-byte chunks, extensions, a trailer: the worker gets the body whole, and routing works."""
    body = json.dumps(chat(stream=False)).encode()
    pieces = b"".join(b"1;name=value\r\n%c\r\n" % byte for byte in body)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    data = head.encode() + pieces + b"0\r\nx-trailer: 1\r\n\r\n"
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(data + data)
        for index in range(2):
            assert (await client.answer()).status == 200
            received = worker.requests[index]
            assert body == received.body
            assert [str(len(body))] == received.http.header_values("content-length")
            assert received.http.framing == "content-length"
            assert received.header("transfer-encoding") is None
            assert received.header("x-trailer") is None


async def test_c30_continue_comes_first_and_stays_here(relay: Relay) -> None:
    """A client that sends no byte of its body before it has 100 gets it; the worker hears nothing of it."""
    head, _, body = post(CHAT, chat(stream=False), {"expect": "100-continue"}).partition(b"\r\n\r\n")
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(head + b"\r\n\r\n")
        assert b"HTTP/1.1 100 Continue\r\n\r\n" == await client.reader.readuntil(b"\r\n\r\n")
        client.send(body)

        assert (await client.answer()).status == 200
        assert worker.requests[0].header("expect") is None


class NoKey:
    """An authenticator that knows nobody."""

    def authenticate(self, headers: list[tuple[bytes, bytes]]) -> Caller:
        """Refuse."""
        raise RequestError(401, "Unknown API key.", code="invalid_api_key")


@pytest.mark.parametrize(("reason", "status"), [("key", 401), ("size", 413)])
async def test_c30_a_body_that_will_not_be_read_is_not_asked_for(relay: Relay, reason: str, status: int) -> None:
    """The final answer comes instead of 100."""
    length = {"content-length": "2000000", "expect": "100-continue"}
    head = request("POST", CHAT, length).replace(b"content-length: 0\r\n", b"")
    options = {
        "authenticator": NoKey() if reason == "key" else None,
        "relay_policy": lambda policy: replace(policy, max_body_bytes=1_000_000),
    }
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, **options) as gate,
        connect(gate.port) as client,
    ):
        client.send(head)
        answer = await client.answer()

        assert answer.status == status
        assert error_object(answer.body)
        assert worker.requests == []
        assert ["close"] == answer.all("connection")
        assert await client.at_end()


async def test_c30_an_unknown_expectation_is_417(relay: Relay) -> None:
    """What cannot be promised is refused in the error envelope."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=False), {"expect": "202-please"}))

        assert answer.status == 417
        assert error_object(answer.body)
        assert worker.requests == []


@pytest.mark.parametrize("count", [2, 10])
async def test_c31_pipelined_requests_outlive_the_keep_alive_time(relay: Relay, count: int) -> None:
    """The idle timer of an earlier request does not end a later one that takes longer than it."""
    gates = [(Gate(f"go{index}"), *scripts.chat_json(f"answer {index}")) for index in range(count)]
    async with (
        FaultServer(*gates) as worker,
        relay(worker, keep_alive_s=0.3) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat(stream=False)) * count)
        for index in range(count):
            await worker.request(index)
            # Longer than the keep-alive time: what must not fire could fire now.
            await asyncio.sleep(0.4 if index in (1, count - 1) else 0)
            worker.release(f"go{index}")
            answer = await client.answer()

            assert (200, True) == (answer.status, answer.complete)
            assert f"answer {index}" == answer.json()["choices"][0]["message"]["content"]


async def test_c31_a_request_right_behind_another_outlives_the_keep_alive_time(relay: Relay) -> None:
    """Not pipelined but quick: the timer armed by the first answer is disarmed by the second request."""
    async with (
        FaultServer(scripts.chat_json(), (Gate("go"), *scripts.chat_json())) as worker,
        relay(worker, keep_alive_s=0.3) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat(stream=False)))
        assert (await client.answer()).status == 200
        client.send(post(CHAT, chat(stream=False)))
        await worker.request(1)
        await asyncio.sleep(0.4)
        worker.release("go")

        assert (await client.answer()).status == 200


BODY = json.dumps(chat(stream=False)).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)

MALFORMED = {
    "chunk-data-junk": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n0\r\n", b"XX0\r\n"),
    "chunk-size-junk": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b"g\r\n", 1),
    "chunk-size-sign": HEAD + CHUNKED + b"\r\n+" + CHUNKS,
    "chunk-size-0x": HEAD + CHUNKED + b"\r\n0x" + CHUNKS,
    "chunk-size-space": HEAD + CHUNKED + b"\r\n " + CHUNKS,
    "chunk-size-overflow": HEAD + CHUNKED + b"\r\nfffffffffffffffff\r\n" + BODY,
    "chunk-size-bare-lf": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b"\n", 1),
    "chunk-end-bare-lf": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"}\r\n0", b"}\n0"),
    "chunk-extension-bare-cr": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b";a\rb\r\n", 1),
    "length-and-chunked": HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    "chunked-and-length": HEAD + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
    "two-lengths": HEAD + LENGTH + b"content-length: 5\r\n\r\n" + BODY,
    "same-length-twice": HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
    "length-list": HEAD + b"content-length: %d, %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY,
    "length-sign": HEAD + b"content-length: +%d\r\n\r\n" % len(BODY) + BODY,
    "length-negative": HEAD + b"content-length: -1\r\n\r\n" + BODY,
    "length-hex": HEAD + b"content-length: 0x%x\r\n\r\n" % len(BODY) + BODY,
    "length-overflow": HEAD + b"content-length: 99999999999999999999999\r\n\r\n" + BODY,
    "xchunked": HEAD + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS,
    "chunked-then-identity": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "gzip-chunked": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "chunked-twice": HEAD + CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
    "space-before-colon": HEAD + b"content-length : %d\r\n\r\n" % len(BODY) + BODY,
    "obs-fold": HEAD + b"x-a: b\r\n " + LENGTH + b"\r\n" + BODY,
    "header-bare-lf": (HEAD + LENGTH).replace(b"\r\n", b"\n") + b"\n" + BODY,
    "header-bare-cr": HEAD + b"x-a: b\rc\r\n" + LENGTH + b"\r\n" + BODY,
    "header-nul": HEAD + b"x-a: b\x00c\r\n" + LENGTH + b"\r\n" + BODY,
    "name-nul": HEAD + b"x\x00a: b\r\n" + LENGTH + b"\r\n" + BODY,
    "no-name": HEAD + b": b\r\n" + LENGTH + b"\r\n" + BODY,
    "no-colon": HEAD + b"nonsense\r\n" + LENGTH + b"\r\n" + BODY,
    "no-version": b"POST /v1/chat/completions\r\nhost: a\r\n" + LENGTH + b"\r\n" + BODY,
    "version": (HEAD + LENGTH + b"\r\n" + BODY).replace(b"HTTP/1.1", b"HTTP/1.11", 1),
    "space-in-target": (HEAD + LENGTH + b"\r\n" + BODY).replace(b"/v1/chat", b"/v1 /chat", 1),
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "http2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
async def test_c32_malformed_requests_reach_no_worker(relay: Relay, data: bytes) -> None:
    """400 in the envelope and the end of the connection: nothing behind such bytes is taken for a request."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(data + post(CHAT, chat(stream=False)))
        answer = await client.answer()

        assert answer.status in (400, 413, 431, 501, 505)
        assert error_object(answer.body)
        assert await client.at_end()
        assert worker.requests == []
        await gate.idle()


async def test_c32_malformed_bytes_behind_a_good_request(relay: Relay) -> None:
    """The good one may be answered; nothing of what follows is."""
    good = post(CHAT, chat(stream=False))
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(good + MALFORMED["chunk-data-junk"] + good)
        received = await client.reader.read()

        assert received.count(b"HTTP/1.1 200") <= 1
        assert len(worker.requests) <= 1
        await gate.idle()


async def test_c32_a_lying_worker_is_not_believed_either(relay: Relay) -> None:
    """Two kinds of framing in an answer: an error for the client, and the connection is not used again."""
    head = response_head(200, (*JSON, ("content-length", "2"), ("transfer-encoding", "chunked")))
    lie = Send(head + b"2\r\n{}\r\n0\r\n\r\n")
    async with FaultServer((lie,), (lie, Fin())) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=False)))

        assert answer.status == 502
        assert error_object(answer.body)
        await worker.requests[0].connection.ended.wait()
        await gate.ended(Outcome.UPSTREAM_ERROR)
