"""
The client side of the relay benchmark: one asyncio process that loads a relay and checks every token it gets.

Modes: `stream` and `light` are concurrent paced streams, `plain` is closed-loop small requests, `many` is slow streams
for memory. The answer is one JSON line: errors, CPU microseconds of the relay's process tree per event (or request),
event lag (received minus sent), time to first byte, memory per stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop

from loadtest.bench.paced_upstream import SLOW_TOKENS
from loadtest.bench.process_tree import cpu_seconds, resident_bytes

DEADLINE_S = 90
_STAMP = re.compile(rb"#(\d+)@(\d+) ")
_LONGEST_EVENT = 400


@dataclass
class Run:
    """One load of one relay; everything the connections share."""

    request: bytes
    requests: int
    tokens: int
    finished: asyncio.Future[None]
    left: int = 0
    events: int = 0
    errors: int = 0
    completed: int = 0
    first_byte_s: list[float] = field(default_factory=list)
    lag_us: list[int] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One keep-alive connection that sends the next request as soon as the last answer is complete."""

    transport: asyncio.Transport

    def __init__(self, run: Run) -> None:
        self.run = run
        self.answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if self.answering:
            self.run.errors += 1
            self._count()

    def _send(self) -> None:
        if self.run.left <= 0:
            self.transport.close()
            return
        self.run.left -= 1
        self.answering, self.first, self.buffer, self.cut, self.due = True, True, b"", b"", self.run.tokens
        self.sent_at = time.perf_counter()
        self.transport.write(self.run.request)

    def data_received(self, data: bytes) -> None:
        run = self.run
        if self.first:
            self.first = False
            run.first_byte_s.append(time.perf_counter() - self.sent_at)
            if not data.startswith(b"HTTP/1.1 200"):
                run.errors += 1
        run.events += data.count(b"data: ")
        if run.tokens:
            self._check_tokens(data)
        if self._complete(data):
            if run.tokens and self.due:
                run.errors += 1
            self.answering = False
            self._count()
            self._send()

    def _check_tokens(self, data: bytes) -> None:
        """Every token once and in order; its lag goes to the list."""
        seen = self.cut + data
        now_us, end = time.monotonic_ns() // 1000, 0
        for match in _STAMP.finditer(seen):
            end = match.end()
            self.run.lag_us.append(now_us - int(match[2]))
            if int(match[1]) != self.due:
                self.run.errors += 1
            self.due -= 1
        self.cut = seen[max(end, len(seen) - _LONGEST_EVENT) :]

    def _complete(self, data: bytes) -> bool:
        if self.run.tokens:
            self.buffer = (self.buffer + data)[-16:]
            return b"0\r\n\r\n" in self.buffer
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        at = self.buffer[:head].lower().find(b"content-length:")
        if at < 0:
            return self.buffer.endswith(b"0\r\n\r\n")
        return len(self.buffer) >= head + 4 + int(self.buffer[at + 15 :].split(b"\r\n", 1)[0])

    def _count(self) -> None:
        self.run.completed += 1
        if self.run.completed >= self.run.requests and not self.run.finished.done():
            self.run.finished.set_result(None)


def percentile_ms(seconds: list[float], share: float) -> float | None:
    """The `share` quantile in milliseconds, None without samples."""
    if not seconds:
        return None
    return round(sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))] * 1000, 3)


def request_bytes(mode: str, tokens: int, api_key: str) -> bytes:
    """The request every connection repeats."""
    content = ("slowly " if mode == "many" else "") + "x" * 1000
    message: dict[str, object] = {
        "model": "m",
        "messages": [{"role": "user", "content": content}],
        "stream": mode != "plain",
    }
    if mode in ("stream", "light"):
        message["max_tokens"] = tokens
    body = json.dumps(message).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(port: int, mode: str, concurrency: int, requests: int, tokens: int, interval_s: float, pids: list[int],
               api_key: str) -> dict[str, object]:  # fmt: skip
    """Run one mode against 127.0.0.1:`port`; `pids` are the roots of the relay's process tree."""
    loop = asyncio.get_running_loop()
    per_stream = {"plain": 0, "many": SLOW_TOKENS}.get(mode, tokens)
    run = Run(request_bytes(mode, tokens, api_key), requests, per_stream, loop.create_future(), left=requests)
    cpu_before, memory_before, memory_full = cpu_seconds(pids), resident_bytes(pids), 0
    ramp_s = 0.0 if mode == "plain" else 8.0 if mode == "many" else tokens * interval_s
    for _ in range(concurrency):
        await loop.create_connection(lambda: Client(run), "127.0.0.1", port)
        if ramp_s:
            await asyncio.sleep(ramp_s / concurrency)
    if mode == "many":
        memory_full = resident_bytes(pids)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await run.finished
    except TimeoutError:
        run.errors += requests - run.completed
    cpu = cpu_seconds(pids) - cpu_before
    units = requests if mode == "plain" else run.events
    lag_s = [lag / 1e6 for lag in run.lag_us]
    return {
        "mode": mode,
        "completed": run.completed,
        "errors": run.errors,
        "us": round(cpu / max(units, 1) * 1e6, 2),
        "events": run.events,
        "tokens": len(run.lag_us),
        "lag_p50_ms": percentile_ms(lag_s, 0.5),
        "lag_p99_ms": percentile_ms(lag_s, 0.99),
        "lag_p999_ms": percentile_ms(lag_s, 0.999),
        "lag_max_ms": percentile_ms(lag_s, 1.0),
        "first_byte_p50_ms": percentile_ms(run.first_byte_s, 0.5),
        "first_byte_p99_ms": percentile_ms(run.first_byte_s, 0.99),
        "kb_per_stream": round((memory_full - memory_before) / concurrency / 1024, 1) if memory_full else None,
    }


def main() -> None:
    """Command line: one mode against one port, one JSON line out."""
    parser = argparse.ArgumentParser(description="Load one relay and check every token.")
    parser.add_argument("port", type=int)
    parser.add_argument("mode", choices=["stream", "plain", "light", "many"])
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--interval-ms", type=float, default=20)
    parser.add_argument("--api-key", default="unused")
    parser.add_argument("--pid", type=int, action="append", default=[], help="root of the relay's process tree")
    o = parser.parse_args()
    interval_s = o.interval_ms / 1000
    result = uvloop.run(load(o.port, o.mode, o.concurrency, o.requests, o.tokens, interval_s, o.pid, o.api_key))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
