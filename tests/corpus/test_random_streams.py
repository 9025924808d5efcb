"""Random streams, endings, line ends and cuts against a model of what the client must see, which splits nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import pytest

from gateway.types import Outcome
from loadtest.servers import frames
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import EVENT_STREAM, LAST_CHUNK, chunk, response_head
from loadtest.servers.message_frames import MessagesStream, ResponsesStream, messages_error
from loadtest.servers.steps import Gate, Reset, Script, Send
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, chat, connect, post

pytestmark = pytest.mark.anyio

STREAM = frames.ChatStream()
TEXTS = ("a", "안😀", '"type":"error"', '","choices":[],"usage":{}}', "x" * 5000, "y" * 70_000)
PATHS = {"chat": CHAT, "responses": "/v1/responses", "messages": "/v1/messages"}
WELL = ("whole", "without-marker")
OUR_EVENT = {"chat": b'data: {"error":{', "responses": b"event: error\ndata: {", "messages": b"event: error\ndata: {"}


@dataclass
class Case:
    """One stream: `good` must reach the client first; `told` is the worker's own error, relayed behind it."""

    family: str
    ending: str
    good: bytes
    told: bytes
    cuts: Script


def split(events: Sequence[bytes]) -> list[bytes]:
    """Single events."""
    return [event + b"\n\n" for joined in events for event in joined.split(b"\n\n") if event]


def chat_case(random_: random.Random) -> tuple[str, list[bytes], bytes, bytes]:
    """Ending, good events, the worker's own words on a failure, and what must not be relayed."""
    ending = random_.choice(["whole", "without-marker", "reset", "clean-end", "flat", "text", "told", "abort"])
    makers = [
        *(STREAM.content(text) for text in TEXTS),
        STREAM.reasoning("r"),
        STREAM.tool_call("{}"),
        b": c\n\n",
        b"data: null\n\n",
    ]
    events = [STREAM.role(), *random_.choices(makers, k=random_.randrange(6))]
    if ending in (*WELL, "abort"):
        events.append(STREAM.finish("abort" if ending == "abort" else "stop"))
    if ending == "whole":
        events.append(frames.DONE)
    told = frames.error_event() if ending == "told" else b""
    hidden = {"flat": frames.flat_error_event(), "text": b'data: {"error":"no"}\n\n'}.get(ending, b"")
    if ending in ("flat", "text", "told", "abort"):
        hidden += frames.DONE
    return ending, events, told, hidden


def named_case(random_: random.Random, family: str) -> tuple[str, list[bytes], bytes, bytes]:
    """The same for the families with named events; one that fails is cut somewhere before its last four."""
    ending = random_.choice(["whole", "reset", "clean-end", "flat", "text", "told"])
    texts = random_.choices(TEXTS, k=random_.randrange(1, 5))
    events = split(ResponsesStream().events(texts) if family == "responses" else MessagesStream().events(texts))
    if ending != "whole":
        events = events[: random_.randrange(1, len(events) - 4)]
    own = {"type": "error", "code": "x", "message": "m", "param": None, "sequence_number": len(events)}
    told = messages_error("m") if family == "messages" else frames.named_event("error", own)
    hidden = {"flat": frames.flat_error_event(), "text": b'data: {"error":"no"}\n\n'}.get(ending, b"")
    return ending, events, told if ending == "told" else b"", hidden


def in_pieces(wire: bytes, random_: random.Random) -> list[bytes]:
    """Cut at random."""
    pieces = []
    smallest = max(1, len(wire) // 2000)
    while wire:
        size = random_.choice([smallest, 2 * smallest, 17 * smallest, 1000, 30_000, len(wire)])
        pieces.append(wire[:size])
        wire = wire[size:]
    return pieces


def case(seed: int) -> Case:
    """A stream with its cuts: into HTTP chunks, by events as workers do or at random, and these into writes."""
    random_ = random.Random(seed)
    family = random_.choice(["chat", "chat", "responses", "messages"])
    ending, events, told, hidden = chat_case(random_) if family == "chat" else named_case(random_, family)
    line_end = random_.choice([b"\n", b"\n", b"\r\n", b"\r"])
    events = [event.replace(b"\n", line_end) for event in events]
    told, hidden = told.replace(b"\n", line_end), hidden.replace(b"\n", line_end)
    good = b"".join(events)
    if random_.random() < 0.5:
        chunks = [chunk(piece) for piece in (*events, told, hidden) if piece]
        edges = list(accumulate(map(len, chunks)))
        body = b"".join(chunks)
        cuts = tuple(sorted(random_.sample(edges, random_.randrange(len(edges)))))
        sent = Send(body if ending == "reset" else body + LAST_CHUNK, cuts=cuts)
    else:
        body = b"".join(map(chunk, in_pieces(good + told + hidden, random_)))
        every = random_.choice([0, 0, max(1, len(body) // 1000), 100, 4096])
        sent = Send(body if ending == "reset" else body + LAST_CHUNK, every=every)
    head = Send(response_head(200, (*EVENT_STREAM, ("transfer-encoding", "chunked"))))
    script = (head, sent, Gate("cut"), Reset()) if ending == "reset" else (head, sent)
    return Case(family, ending, good, told, script)


@pytest.mark.parametrize("seed", range(120))
async def test_c05_random_streams_end_honestly(relay: Relay, seed: int) -> None:
    """Good events byte for byte; behind them nothing, the worker's own error, or exactly one of ours and no marker."""
    made = case(seed)
    request = {**chat(stream_options={"include_usage": True}), "input": "x", "max_tokens": 9}
    async with FaultServer(made.cuts) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(PATHS[made.family], request))
        answer = await client.head()
        if made.ending == "reset":
            while len(answer.body) < len(made.good) and await client.chunk(answer):
                pass
            worker.release("cut")
        await client.rest(answer)

        assert (200, True) == (answer.status, answer.complete)
        # The last LF of CRLF belongs to the event before; where our event follows, its absence changes nothing.
        good = made.good if made.ending in (*WELL, "told") else made.good.rstrip(b"\r\n")
        assert good == answer.body[: len(good)]
        rest = answer.body[len(good) :]
        if made.ending in WELL:
            assert rest == b""
            await gate.ended(Outcome.OK)
        elif made.ending == "told":
            assert rest.startswith(made.told)
            assert OUR_EVENT[made.family] not in rest.removeprefix(made.told)
            await gate.ended(Outcome.UPSTREAM_ERROR)
        else:
            assert rest.lstrip(b"\r\n").startswith(OUR_EVENT[made.family])
            assert rest.count(OUR_EVENT[made.family]) == 1
            assert b"[DONE]" not in rest
            await gate.ended(Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_INCOMPLETE)
        await gate.idle()
