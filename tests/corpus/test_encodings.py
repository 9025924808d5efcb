"""Compressed bodies and JSON bodies with their lengths, in both directions."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import zstandard

from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import EVENT_STREAM, JSON
from tests.corpus.expectations import EVENTS, error_object, sdk
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, ask, chat, post

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "hi"}]


def deflate(data: bytes) -> bytes:
    """A zlib stream, as the standard wants."""
    return zlib.compress(data)


def raw_deflate(data: bytes) -> bytes:
    """What some clients send instead."""
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


def zstd(data: bytes) -> bytes:
    """One frame."""
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(("coding", "encode"), [("gzip", gzip.compress), ("deflate", deflate), ("zstd", zstd)])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c22_a_compressed_answer_matches_its_header(
    relay: Relay, coding: str, encode: Callable[[bytes], bytes], stream: bool
) -> None:
    """A worker compresses although nobody asked: header and bytes reach the client in agreement, untouched."""
    whole = b"".join(EVENTS) if stream else frames.compact(frames.chat_body("Paris."))
    encoded = encode(whole)
    content = EVENT_STREAM if stream else JSON
    script = scripts.answer(200, encoded, (("content-encoding", coding),), content=content)
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=stream), {"accept-encoding": coding}))

        assert (200, True) == (answer.status, answer.complete)
        assert [coding] == answer.all("content-encoding")
        assert encoded == answer.body
        if not stream:
            assert [str(len(encoded))] == answer.all("content-length")
        await gate.idle()


async def test_c22_the_sdk_reads_a_compressed_answer(relay: Relay) -> None:
    """End to end: the text arrives, decoded once."""
    encoded = gzip.compress(frames.compact(frames.chat_body("안녕")))
    script = scripts.answer(200, encoded, (("content-encoding", "gzip"),))
    async with FaultServer(script) as worker, relay(worker) as gate, sdk(gate.port) as client:
        said = await client.chat.completions.create(model="sim", messages=USER)

        assert "안녕" == said.choices[0].message.content


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c23_the_worker_is_asked_for_plain_bytes(relay: Relay, stream: bool) -> None:
    """What a client can decode is about its own connection; answers are not compressed here either."""
    script = scripts.stream(EVENTS) if stream else scripts.chat_json()
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=stream), {"accept-encoding": "gzip, br, zstd"}))

        assert worker.requests[0].http.header_values("accept-encoding") in ([], ["identity"])
        assert [] == answer.all("content-encoding")
        assert answer.complete


PRETTY = json.dumps(frames.chat_body("안녕 é 😀"), indent=3).encode().replace(b": ", b"\t :  ") + b"\r\n \n"


@pytest.mark.parametrize("model", ["sim", "alias"])
async def test_c24_odd_json_keeps_its_bytes_and_its_length(relay: Relay, model: str) -> None:
    """Whitespace and escapes pass unchanged in both directions; only a model's alias is replaced, with the length."""
    request = b'{ "model" :\t"%b", "x":1.50, "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}] }\n'
    async with FaultServer(scripts.answer(200, PRETTY)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, request % model.encode()))

        assert answer.complete
        assert PRETTY == answer.body
        assert [str(len(PRETTY))] == answer.all("content-length")
        expected = request % b"sim"
        received = worker.requests[0]
        assert expected == received.body
        assert [str(len(expected))] == received.http.header_values("content-length")
        await gate.ended(Outcome.OK)


async def test_c24_a_chunked_answer_is_framed_once(relay: Relay) -> None:
    """A JSON answer without length arrives whole with exactly one kind of framing."""
    script = scripts.stream([PRETTY[:50], PRETTY[50:]], headers=JSON)
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=False)))

        assert (True, PRETTY) == (answer.complete, answer.body)
        assert 1 == len(answer.all("content-length")) + len(answer.all("transfer-encoding"))


ENCODERS = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", deflate),
    ("deflate", raw_deflate),
    ("zstd", zstd),
    ("GZIP", gzip.compress),
    ("identity", bytes),
]


@pytest.mark.parametrize(("coding", "encode"), ENCODERS, ids=lambda value: getattr(value, "__name__", value))
async def test_c29_a_compressed_request_is_decoded(relay: Relay, coding: str, encode: Callable[[bytes], bytes]) -> None:
    """The worker gets plain JSON with its own length, and no word about compression."""
    body = json.dumps(chat(stream=False)).encode()
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, encode(body), {"content-encoding": coding}))

        assert answer.status == 200
        received = worker.requests[0]
        assert body == received.body
        assert received.header("content-encoding") is None
        assert [str(len(body))] == received.http.header_values("content-length")


BODY = json.dumps(chat(stream=False)).encode()


@pytest.mark.parametrize(
    ("coding", "data", "statuses"),
    [
        ("br", b"\x0b\x02\x80ab\x03", (415,)),
        ("snappy", BODY, (415,)),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), (400, 415)),
        ("gzip", gzip.compress(BODY)[:-9], (400,)),
        ("gzip", BODY, (400,)),
        ("zstd", zstd(BODY)[:-3], (400,)),
        ("zstd", BODY, (400,)),
        ("deflate", deflate(BODY)[:-5], (400,)),
        ("gzip", b"", (400,)),
    ],
    ids=["br", "unknown", "twice", "cut", "no-gzip", "zstd-cut", "no-zstd", "deflate-cut", "empty"],
)
async def test_c29_a_body_that_cannot_be_decoded_is_refused(
    relay: Relay, coding: str, data: bytes, statuses: tuple[int, ...]
) -> None:
    """With a status that says why; no worker hears of it."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, data, {"content-encoding": coding}))

        assert answer.status in statuses
        assert error_object(answer.body)
        assert worker.requests == []
        await gate.ended(Outcome.CLIENT_ERROR)


def bomb(coding: str, size: int) -> bytes:
    """`size` blanks compressed, made in small pieces so that making it costs no memory."""
    if coding == "zstd":
        compressor = zstandard.ZstdCompressor().compressobj()
    else:
        compressor = zlib.compressobj(wbits=zlib.MAX_WBITS + (16 if coding == "gzip" else 0))
    piece = b" " * 1_000_000
    return b"".join(compressor.compress(piece) for _ in range(size // len(piece))) + compressor.flush()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_c29_a_bomb_is_413_in_bounded_memory(relay: Relay, coding: str) -> None:
    """A few kilobytes that would become 200 MB are given up at the limit."""
    data = bomb(coding, 200_000_000)
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, relay_policy=lambda policy: replace(policy, max_body_bytes=1_000_000)) as gate,
    ):
        tracemalloc.start()
        try:
            answer = await ask(gate.port, post(CHAT, data, {"content-encoding": coding}))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert answer.status == 413
        assert error_object(answer.body)["code"] == "request_too_large"
        assert peak < 40_000_000
        assert worker.requests == []
