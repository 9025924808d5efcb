"""What happens to a stream's bytes on their way: nothing, at once, in any spelling that SSE allows."""

from __future__ import annotations

import hashlib
import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import EVENT_STREAM
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Fin, Gate, Script, Send, Stall
from tests.corpus.expectations import EVENTS, error_in, sdk
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, ask, chat, connect, post

pytestmark = pytest.mark.anyio

CHUNKED_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WANTS_USAGE = {"stream_options": {"include_usage": True}}
USER = [{"role": "user", "content": "hi"}]
LINE_ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), min_size=1, max_size=5),
    line_end=st.sampled_from(sorted(LINE_ENDS.values())),
    cuts=st.sets(st.integers(1, 2000), max_size=12),
)
async def test_c09_any_text_and_any_cut_pass_unchanged(
    relay: Relay, texts: list[str], line_end: bytes, cuts: set[int]
) -> None:
    """The relayed body is the worker's body, wherever the network cut it."""
    events = frames.ChatStream().events(texts)
    body = b"".join(event.replace(b"\n", line_end) for event in events)
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    places = tuple(sorted(cut for cut in cuts if cut < len(framed)))
    script = (Send(CHUNKED_STREAM), Send(framed, cuts=places))
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(**WANTS_USAGE)))

        assert answer.complete
        assert hashlib.sha256(body).digest() == hashlib.sha256(answer.body).digest()
        await gate.ended(Outcome.OK)


async def test_c09_characters_cut_at_every_byte_stay_whole(relay: Relay) -> None:
    """One byte per write, in text and in tool arguments: no replacement character, nothing lost."""
    stream = frames.ChatStream()
    arguments = stream.tool_call(json.dumps({"city": "안녕 😀"}, ensure_ascii=False), name="look")
    events = [stream.role(), stream.content("안녕 😀"), arguments, stream.finish("tool_calls"), frames.DONE]
    async with FaultServer(scripts.stream(events, cut_every=1)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert b"".join(events) == answer.body
        assert "\ufffd" not in answer.body.decode()
        await gate.ended(Outcome.OK)


@pytest.mark.parametrize("every", [0, 1], ids=["whole", "bytewise"])
@pytest.mark.parametrize("prefix", [b"data: ", b"data:"], ids=["space", "no-space"])
@pytest.mark.parametrize("line_end", LINE_ENDS.values(), ids=LINE_ENDS)
@pytest.mark.parametrize("asked", [True, False], ids=["usage-asked", "usage-forced"])
async def test_c10_every_spelling_of_sse_is_read(
    relay: Relay, asked: bool, line_end: bytes, prefix: bytes, every: int
) -> None:
    """Usage and finish are known for every line end and spacing; only the usage nobody asked for is left out."""

    def respelt(events: list[bytes]) -> list[bytes]:
        return [event.replace(b"data: ", prefix).replace(b"\n", line_end) for event in events]

    def script(request: RecordedRequest) -> Script:
        wanted = request.json().get("stream_options", {}).get("include_usage", False)
        return scripts.stream(respelt(frames.ChatStream().events(usage=wanted)), cut_every=every)

    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(**(WANTS_USAGE if asked else {}))))

        assert answer.complete
        assert b"".join(respelt(frames.ChatStream().events(usage=asked))) == answer.body
        record = await gate.ended(Outcome.OK)
        if record is not None:
            assert (22, 3, ("stop",)) == (record.prompt_tokens, record.output_tokens, record.finish_reasons)


@pytest.mark.parametrize("every", [0, 1, 13])
async def test_c11_comments_and_events_over_several_lines(relay: Relay, every: int) -> None:
    """A comment glued to an event, JSON over two data lines, reads that end inside an event: nothing breaks."""
    stream = frames.ChatStream()
    head, tail = stream.content("is").split(b',"choices"')
    two_lines = head + b"\ndata: " + b',"choices"' + tail
    usage_head, usage_tail = stream.usage().split(b',"usage"')
    events = [
        b": PROCESSING\n\n" + stream.role(),
        stream.content("Par"),
        two_lines,
        b":\n" + stream.content("."),
        stream.finish(),
        usage_head + b'\ndata:,"usage"' + usage_tail,
        frames.DONE,
    ]
    async with (
        FaultServer(scripts.stream(events, cut_every=every)) as worker,
        relay(worker) as gate,
        sdk(gate.port) as client,
    ):
        answer = await ask(gate.port, post(CHAT, chat(**WANTS_USAGE)))
        streamed = await client.chat.completions.create(model="sim", messages=USER, stream=True, **WANTS_USAGE)
        chunks = [chunk async for chunk in streamed]

        assert b"".join(events) == answer.body
        assert b"data: :" not in answer.body
        assert "Paris." == "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert 3 == chunks[-1].usage.completion_tokens
        record = await gate.ended(Outcome.OK)
        if record is not None:
            assert (22, 3, 7) == (record.prompt_tokens, record.output_tokens, record.events)


@pytest.mark.parametrize("payload", [b"null", b"[]", b"1", b'"x"', b"{}", b"{oops", b'{"choices":3}', b"\xff\xfe"])
async def test_c16_odd_payloads_between_good_ones(relay: Relay, payload: bytes) -> None:
    """What is no chunk is relayed and passed over: no crash, no cut, no failure."""
    events = [*EVENTS[:2], frames.data_event(payload), *EVENTS[2:]]
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.complete
        assert b"".join(events) == answer.body
        await gate.ended(Outcome.OK)


async def test_c16_odd_payload_at_the_very_beginning(relay: Relay) -> None:
    """Also where the first event is judged."""
    events = [frames.data_event(b"null"), *EVENTS]
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert (200, b"".join(events)) == (answer.status, answer.body)
        await gate.ended(Outcome.OK)


async def test_c18_streams_ask_not_to_be_buffered(relay: Relay) -> None:
    """The headers that keep proxies in front from collecting a stream, and none that contradicts them."""
    headers = (
        ("content-type", "text/event-stream"),
        ("cache-control", "max-age=60"),
        ("x-accel-buffering", "yes"),
        ("etag", '"x"'),
    )
    async with FaultServer(scripts.stream(EVENTS, headers=headers)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(), {"accept": "application/json"}))

        assert ["text/event-stream; charset=utf-8"] == answer.all("content-type")
        assert ["no-cache"] == answer.all("cache-control")
        assert ["no"] == answer.all("x-accel-buffering")
        assert ["chunked"] == answer.all("transfer-encoding")
        assert [] == [*answer.all("content-length"), *answer.all("content-encoding"), *answer.all("etag")]


async def test_c19_every_event_is_flushed_at_once(relay: Relay) -> None:
    """Each event arrives, in a chunk of its own, before the worker has sent the next one."""
    gated = scripts.gated(EVENTS, {index: f"e{index}" for index in range(1, len(EVENTS))})
    async with FaultServer(scripts.stream(gated)) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(CHAT, chat()))
        answer = await client.head()
        for index, event in enumerate(EVENTS[:-1]):
            assert event == await client.chunk(answer)
            worker.release(f"e{index + 1}")
        await client.rest(answer)

        assert b"".join(EVENTS) == answer.body


async def test_c19_the_gateway_adds_little_to_an_event(relay: Relay) -> None:
    """Of forty small events a quarter is passed on within 5 ms each, on however busy a machine: nothing waits."""
    event = frames.ChatStream().content("x")
    sent: list[float] = []

    def script(request: RecordedRequest) -> Script:
        events = [step for index in range(40) for step in (Gate(f"e{index}"), event)]
        return scripts.stream([EVENTS[0], *events, Gate("end"), *EVENTS[-2:]])

    async with FaultServer(script) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(CHAT, chat()))
        answer = await client.head()
        await client.chunk(answer)
        lags = []
        for index in range(40):
            sent.append(time.perf_counter())
            worker.release(f"e{index}")
            assert event == await client.chunk(answer)
            lags.append(time.perf_counter() - sent[-1])
        worker.release("end")
        await client.rest(answer)

        assert sorted(lags)[10] < 0.005


@pytest.mark.parametrize("length", ["exact", "small", "large"])
async def test_c21_a_length_on_a_stream_is_not_passed_on(relay: Relay, length: str) -> None:
    """A stream is framed anew: its declared length is dropped, and one that lies is no way to look complete."""
    body = b"".join(EVENTS)
    told = {"exact": len(body), "small": len(b"".join(EVENTS[:2])), "large": len(body) + 100}[length]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % told
    async with FaultServer(scripts.raw(head + body, Fin())) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert [] == answer.all("content-length")
        assert ["chunked"] == answer.all("transfer-encoding")
        assert answer.complete
        if length == "small":
            assert EVENTS[:2] == answer.events[:2]
            assert error_in(answer.events[2])
            await gate.ended(Outcome.UPSTREAM_INCOMPLETE)
        else:
            assert body == answer.body
            await gate.ended(Outcome.OK)


async def test_c21_a_small_length_does_not_hide_the_rest_of_a_live_stream(relay: Relay) -> None:
    """The worker keeps the connection open behind its wrong length: its bytes never meet another request."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(EVENTS[0])
    first = (Send(head + b"".join(EVENTS)), Stall())
    async with FaultServer(first, scripts.stream(EVENTS, headers=EVENT_STREAM)) as worker, relay(worker) as gate:
        broken = await ask(gate.port, post(CHAT, chat()))
        whole = await ask(gate.port, post(CHAT, chat()))

        assert error_in(broken.events[-1])
        assert b"".join(EVENTS) == whole.body
        assert len(worker.connections) == 2
