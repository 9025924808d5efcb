"""
The scripted worker behind every relay that is measured: OpenAI chat on one port, paced exactly, cheap to run.

A streamed request gets TOKENS events (fewer where its `max_tokens` says so), one every `interval_s`; each carries a
running number (counting down) and its send time on the shared monotonic clock, with text of varying length. One event
in ten is cut into two writes, one in ten travels together with its neighbour, so that a relay must really frame. A
request whose body contains `slowly` gets 15 events at a fiftieth of the pace (for memory per stream). Anything else is
answered with one JSON object. It knows just enough HTTP for the clients that are used here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from typing import Any, cast

import uvloop

SLOW_TOKENS = 15
SLOW_FACTOR = 50
_SLOTS = 10
"""An interval is cut into so many slots; each stream belongs to one, so that sends spread over the interval."""

_BASE: dict[str, Any] = {
    "id": "chatcmpl-b92abfa80e8508e0",
    "object": "chat.completion.chunk",
    "created": 1795969465,
    "model": "m",
}
_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_WORDS = b"the quick brown fox jumps over the lazy dog and runs away from it "


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({**_BASE, **fields}).encode() + b"\n\n"


def _delta(delta: dict[str, str], finish: str | None = None, **fields: Any) -> bytes:
    return _event(choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **fields}])


_ROLE = _chunk(_delta({"role": "assistant", "content": ""}))
_BEFORE, _AFTER = _delta({"content": "@"}, token_ids=None).split(b"@")
_LAST = _chunk(_delta({"content": ""}, "stop", stop_reason=None))
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _answer(body: bytes, content_type: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (content_type, len(body), body)


def _token(number: int) -> bytes:
    text = _WORDS[: number * 7 % 40]
    return b"%b#%d@%d %b%b" % (_BEFORE, number, time.monotonic_ns() // 1000, text, _AFTER)


class PacedUpstream:
    """One port's worth of scripted worker."""

    def __init__(self, tokens: int, interval_s: float) -> None:
        self.tokens, self.interval_s = tokens, interval_s
        self.streams: dict[Connection, int] = {}
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        self.usage = _chunk(_event(choices=[], usage=usage))
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "hello " * tokens},
            "finish_reason": "stop",
        }
        whole = {**_BASE, "object": "chat.completion", "choices": [choice], "usage": usage}
        self.plain = _answer(json.dumps(whole).encode())
        models = [{"id": "m", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 8192}]
        self.models = _answer(json.dumps({"object": "list", "data": models}).encode())
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        text = "".join(f'vllm:{gauge}{{model_name="m",engine="0"}} 0.0\n' for gauge in gauges)
        self.metrics = _answer(text.encode(), b"text/plain; version=0.0.4")

    async def serve(self, port: int) -> None:
        """Listen on loopback and pace all streams until cancelled."""
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: Connection(self), "127.0.0.1", port, backlog=4096)
        turn, due = 0, loop.time()
        while True:
            turn += 1
            due += self.interval_s / _SLOTS
            await asyncio.sleep(max(0.0, due - loop.time()))
            for stream in [s for s in self.streams if s.slot == turn % _SLOTS]:
                self._advance(stream, turn)

    def _advance(self, stream: Connection, turn: int) -> None:
        left = self.streams.get(stream)
        if left is None or (stream.slow and turn // _SLOTS % SLOW_FACTOR != stream.slow_slot):
            return
        write = stream.transport.write
        if left <= 0:
            write(_LAST + (self.usage if stream.wants_usage else b"") + _END)
            del self.streams[stream]
        elif left > 1 and left % 10 == 3 and not stream.slow:
            write(_chunk(_token(left)) + _chunk(_token(left - 1)))
            self.streams[stream] = left - 2
        elif left % 10 == 7:
            event = _token(left)
            write(_chunk(event[:60]))
            write(_chunk(event[60:]))
            self.streams[stream] = left - 1
        else:
            write(_chunk(_token(left)))
            self.streams[stream] = left - 1


class Connection(asyncio.Protocol):
    """One client connection; requests one after the other."""

    transport: asyncio.Transport
    _opened = 0

    def __init__(self, upstream: PacedUpstream) -> None:
        self.upstream = upstream
        self.buffer = b""
        self.wants_usage = self.slow = False
        Connection._opened += 1
        self.slot = Connection._opened % _SLOTS
        self.slow_slot = Connection._opened // _SLOTS % SLOW_FACTOR

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def connection_lost(self, error: Exception | None) -> None:
        self.upstream.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (request := self._next_request()) is not None:
            self._respond(*request)

    def _next_request(self) -> tuple[bytes, bytes] | None:
        """Request line and body of the next complete request in the buffer."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = self.buffer[:end].lower()
        if b"transfer-encoding: chunked" in head:
            stop = self.buffer.find(b"0\r\n\r\n", end + 4)
            if stop < 0:
                return None
            body, rest = self.buffer[end + 4 : stop], self.buffer[stop + 5 :]
        else:
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return None
            body, rest = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
        line, self.buffer = self.buffer[: self.buffer.find(b"\r\n")], rest
        return line, body

    def _respond(self, line: bytes, body: bytes) -> None:
        upstream = self.upstream
        if line.startswith(b"GET /v1/models"):
            self.transport.write(upstream.models)
        elif line.startswith(b"GET /metrics"):
            self.transport.write(upstream.metrics)
        elif line.startswith(b"GET"):
            self.transport.write(_answer(b"{}"))
        elif b'"stream":true' in body or b'"stream": true' in body:
            self.wants_usage, self.slow = b"include_usage" in body, b"slowly" in body
            self.transport.write(_STREAM_HEAD + _ROLE)
            upstream.streams[self] = SLOW_TOKENS if self.slow else self._tokens(body)
        else:
            self.transport.write(upstream.plain)

    def _tokens(self, body: bytes) -> int:
        asked = _MAX_TOKENS.search(body)
        return self.upstream.tokens if asked is None else min(self.upstream.tokens, int(asked[1]))


def main() -> None:
    """Command line: PORT, pacing."""
    parser = argparse.ArgumentParser(description="Scripted worker with exact pacing.")
    parser.add_argument("port", type=int)
    parser.add_argument("--tokens", type=int, default=128, help="events of a stream")
    parser.add_argument("--interval-ms", type=float, default=20, help="time between two events of a stream")
    options = parser.parse_args()
    uvloop.run(PacedUpstream(options.tokens, options.interval_ms / 1000).serve(options.port))


if __name__ == "__main__":
    main()
