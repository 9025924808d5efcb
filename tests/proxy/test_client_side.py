"""The client's connection: keep-alive, pipelining, framing, slow readers, bodies of every kind."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import chunk
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Fin, Flood, Gate, Reset, Send, Stall
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, ask, chat, connect, post, request
from tests.proxy.served import until

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    """Streams and plain answers mixed on one connection, the first one slow."""
    slow = (Gate("go"), *scripts.chat_stream())
    async with (
        asyncio.timeout(10),
        FaultServer(slow, scripts.chat_json("second"), scripts.chat_stream()) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        wants_usage = {"stream_options": {"include_usage": True}}
        client.send(
            post(CHAT, chat(**wants_usage))
            + post(CHAT, chat(stream=False))
            + request("GET", "/health")
            + post(CHAT, chat(**wants_usage))
        )
        await worker.request(0)
        worker.release("go")
        answers = [await client.answer() for _ in range(4)]

        assert [200] * 4 == [answer.status for answer in answers]
        assert answers[0].body.endswith(frames.DONE)
        assert "second" in answers[1].json()["choices"][0]["message"]["content"]
        assert answers[2].json() == {"status": "ok"}
        assert answers[3].body == answers[0].body
        await served.idle()


async def test_every_event_is_written_at_once(gateway: Gateway) -> None:
    """An event arrives before the worker sends the next one: nothing is collected."""
    gated = scripts.gated(EVENTS, {index: f"e{index}" for index in range(1, len(EVENTS))})
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream(gated)) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        for index, event in enumerate(EVENTS[:-1]):
            assert await client.chunk(answer) == event
            worker.release(f"e{index + 1}")
        await client.rest(answer)

        assert answer.body == b"".join(EVENTS)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("cut_every", [1, 7])
async def test_any_line_end_and_any_cut_pass_unchanged(gateway: Gateway, line_end: bytes, cut_every: int) -> None:
    """Bytes in are bytes out, and the observer reads them all the same."""
    events = [event.replace(b"\n", line_end) for event in [b": hello\n\n", *frames.ChatStream().events(["안녕", "😀"])]]
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.stream(events, cut_every=cut_every)) as worker,
        gateway(worker) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat(stream_options={"include_usage": True})))
        record = await served.records.record()

        assert b"".join(events) == answer.body
        assert (record.outcome, record.output_tokens) == (Outcome.OK, 2)


async def test_forced_usage_is_counted_and_not_shown(gateway: Gateway) -> None:
    """The worker is asked for usage; a client that did not ask never sees the event."""
    events = frames.ChatStream().events()
    async with asyncio.timeout(10), FaultServer(scripts.stream(events)) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))
        record = await served.records.record()

        assert worker.requests[0].json()["stream_options"] == {"include_usage": True}
        assert b"".join(event for event in events if b'"usage"' not in event) == answer.body
        assert (record.prompt_tokens, record.output_tokens) == (22, 3)


async def test_a_slow_reader_stalls_its_own_stream_only(gateway: Gateway) -> None:
    """The worker of a stalled stream is no longer read, memory stays bounded, other streams flow."""
    event = chunk(frames.ChatStream().content("x" * 4000))
    total = 200 * 1024 * 1024
    async with (
        asyncio.timeout(60),
        FaultServer((Send(HEAD), Flood(event, total)), scripts.chat_stream()) as worker,
        gateway(worker) as served,
    ):
        before = _rss()
        async with connect(served.port, receive_buffer=4096) as slow:
            slow.send(post(CHAT, chat()))
            sent = await _settled(await worker.request(0))
            for _ in range(20):
                assert (await ask(served.port, post(CHAT, chat()))).body.endswith(frames.DONE)

            # Kernel buffers of both connections and of the worker's own transport are in the figure.
            assert worker.requests[0].sent - sent < 1024 * 1024
            assert worker.requests[0].sent < 32 * 1024 * 1024
            assert _rss() - before < 20 * 1024 * 1024
        await served.idle()


async def test_a_slow_reader_gets_everything(gateway: Gateway) -> None:
    """Pausing and resuming loses and reorders nothing."""
    events = [frames.ChatStream().content(f"{number} " + "y" * 3000) for number in range(3000)]
    whole = [EVENTS[0], *events, *EVENTS[-2:]]
    async with (
        asyncio.timeout(60),
        FaultServer(scripts.stream(whole)) as worker,
        gateway(worker) as served,
        connect(served.port, receive_buffer=4096) as client,
    ):
        client.send(post(CHAT, chat()))
        await until(served.stalled)
        answer = await client.answer()

        assert answer.complete
        assert b"".join(whole) == answer.body
        assert (await served.records.record()).events == len(whole)
        await served.idle()


async def test_a_chunked_request_reaches_the_worker_with_a_length(gateway: Gateway) -> None:
    """One-byte chunks, chunk extensions and a trailer: the worker gets one body with one length."""
    body = json.dumps(chat(stream=False)).encode()
    pieces = b"".join(b"1;ext=1\r\n%c\r\n" % byte for byte in body)
    lines = (f"POST {CHAT} HTTP/1.1", "host: a", "content-type: application/json", "transfer-encoding: chunked")
    head = "\r\n".join([*lines, "", ""]).encode()
    async with asyncio.timeout(10), FaultServer(scripts.chat_json()) as worker, gateway(worker) as served:
        answer = await ask(served.port, head + pieces + b"0\r\nx-trailer: 1\r\n\r\n")

        assert answer.status == 200
        received = worker.requests[0]
        assert received.body == body
        assert received.http.header_values("content-length") == [str(len(body))]
        assert received.header("transfer-encoding") is None


async def test_continue_is_sent_for_a_body_that_will_be_read(gateway: Gateway) -> None:
    """A client that waits for 100 gets it before it sends its body; the worker hears nothing of it."""
    data = post(CHAT, chat(stream=False), {"expect": "100-continue"})
    head, _, body = data.partition(b"\r\n\r\n")
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(head + b"\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert (await client.answer()).status == 200
        assert worker.requests[0].header("expect") is None


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_over_the_limit_is_413_and_readable(gateway: Gateway, framing: str) -> None:
    """The client can send all it has and then reads the answer; no worker is bothered."""

    body = b'{"model":"sim","x":"' + b"x" * 3_000_000 + b'"}'
    if framing == "length":
        data = post(CHAT, body)
    else:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        data = head + b"".join(chunk(body[at : at + 65536]) for at in range(0, len(body), 65536)) + b"0\r\n\r\n"
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker, relay_policy=lambda policy: replace(policy, max_body_bytes=1_000_000)) as served,
        connect(served.port) as client,
    ):
        client.send(data)
        answer = await client.answer()

        assert answer.status == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert worker.connections == []
        await served.idle()


async def test_a_length_over_the_limit_gets_no_continue(gateway: Gateway) -> None:
    """The final answer comes instead of 100, and the connection ends: its framing would be ambiguous."""

    head = request("POST", CHAT, {"expect": "100-continue", "content-length": "2000000"}).replace(
        b"content-length: 0\r\n", b""
    )
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker, relay_policy=lambda policy: replace(policy, max_body_bytes=1_000_000)) as served,
        connect(served.port) as client,
    ):
        client.send(head)
        answer = await client.answer()

        assert answer.status == 413
        assert await client.at_end()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_a_compressed_body_is_decoded(gateway: Gateway, coding: str) -> None:
    """Some agents compress their requests; workers get plain bytes."""
    body = json.dumps(chat(stream=False)).encode()
    if coding == "zstd":
        zstandard = pytest.importorskip("zstandard")
        data = zstandard.ZstdCompressor().compress(body)
    else:
        data = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    async with asyncio.timeout(10), FaultServer(scripts.chat_json()) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, data, {"content-encoding": coding}))

        assert answer.status == 200
        assert worker.requests[0].body == body
        assert worker.requests[0].header("content-encoding") is None


@pytest.mark.parametrize(
    ("coding", "data", "status"),
    [
        ("br", b"xx", 415),
        ("gzip", b"\x1f\x8bnot gzip", 400),
        ("gzip", gzip.compress(b'{"model":"sim"}')[:-9], 400),
        ("gzip", gzip.compress(b" " * 80_000_000), 413),
        ("gzip, gzip", b"xx", 415),
    ],
    ids=["unknown", "corrupt", "truncated", "bomb", "twice"],
)
async def test_a_body_that_cannot_be_decoded_is_refused(
    gateway: Gateway, coding: str, data: bytes, status: int
) -> None:
    """With a status that says why, in bounded memory."""
    async with asyncio.timeout(10), FaultServer(scripts.chat_json()) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, data, {"content-encoding": coding}))

        assert answer.status == status
        assert answer.json()["error"]["message"]
        assert worker.connections == []


async def test_a_stalled_body_is_408(gateway: Gateway) -> None:
    """A client that stops sending does not hold a place for ever."""

    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker, relay_policy=lambda policy: replace(policy, body_stall_s=0.2)) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat())[:-5])
        answer = await client.answer()

        assert answer.status == 408
        await served.idle()


@pytest.mark.parametrize("content_length", ["full", "small"])
async def test_a_length_on_a_stream_is_not_passed_on(gateway: Gateway, content_length: str) -> None:
    """The stream is framed anew; a length that lies makes it incomplete, not short."""
    body = b"".join(EVENTS)
    length = len(body) if content_length == "full" else len(b"".join(EVENTS[:2]))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % length
    async with asyncio.timeout(10), FaultServer(scripts.raw(head + body)) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.header("content-length") is None
        assert answer.complete
        if content_length == "full":
            assert body == answer.body
        else:
            assert b'"error"' in answer.events[-1]


async def test_a_body_that_ends_with_the_connection_is_whole(gateway: Gateway) -> None:
    """HTTP/1.0 style answers: neither length nor chunks."""
    body = b"".join(EVENTS)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"

    async with asyncio.timeout(10), FaultServer(scripts.raw(head + body, Fin())) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))

        assert body == answer.body
        assert (await served.records.record()).outcome is Outcome.OK
        await served.idle()


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ],
    ids=["garbage", "te-and-cl", "gzip-coding", "two-lengths", "huge-header", "upgrade"],
)
async def test_a_worker_that_does_not_speak_http_is_502(gateway: Gateway, answer: bytes) -> None:
    """Framing is judged strictly, and the connection is not used again."""

    async with (
        asyncio.timeout(10),
        FaultServer(scripts.raw(answer, Stall())) as worker,
        gateway(worker) as served,
    ):
        received = await ask(served.port, post(CHAT, chat(stream=False)))

        assert received.status == 502
        await worker.requests[0].connection.ended.wait()
        await served.idle()


async def test_informational_answers_are_skipped(gateway: Gateway) -> None:
    """100 and 103 before the answer mean nothing to the client."""
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    script = (Send(early), *scripts.chat_json())
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat(stream=False)))

        assert answer.status == 200
        assert answer.header("link") is None


async def test_workers_behind_unix_sockets(gateway: Gateway, tmp_path: Path) -> None:
    """The same over a Unix socket."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_stream(), uds=str(tmp_path / "w.sock")) as worker,
        gateway(worker) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.body.endswith(frames.DONE)
        assert worker.requests[0].header("host") == "localhost"


async def test_one_long_line_passes_in_pieces(gateway: Gateway) -> None:
    """16 MiB in one event: relayed as it comes, in linear time, in bounded memory."""
    event = frames.ChatStream().content("z" * (16 * 1024 * 1024))
    async with (
        asyncio.timeout(30),
        FaultServer(scripts.stream([EVENTS[0], event, *EVENTS[-2:]])) as worker,
        gateway(worker) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.body == EVENTS[0] + event + EVENTS[-2] + EVENTS[-1]
        assert (await served.records.record()).outcome is Outcome.OK


async def test_a_cut_inside_an_event_already_passed_on_breaks_the_framing(gateway: Gateway) -> None:
    """When half an event is out, no error event could be read: the body must not end properly."""
    half = frames.ChatStream().content("z" * 500_000)[:400_000]

    async with (
        asyncio.timeout(10),
        FaultServer(scripts.stream([EVENTS[0], half, Gate("cut")], end=Reset())) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        while len(answer.body) < 300_000:
            await client.chunk(answer)
        worker.release("cut")
        await client.rest(answer)

        assert not answer.complete
        assert (await served.records.record()).outcome is not Outcome.OK


async def _settled(received: RecordedRequest) -> int:
    """How much the worker could send, once it cannot send more for a while: all buffers between are full."""
    sent = -1
    while sent != received.sent:
        sent = received.sent
        await asyncio.sleep(0.5)
    return sent


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
