"""
A chat server with an exact schedule that logs when it really sent: the yardstick for whoever measures streams.

Every request is answered with a role event, tokens at fixed times after the request was complete, and one of several
ends. `sent` times are taken right after each write, on CLOCK_MONOTONIC, which other processes of the machine share
(time.perf_counter on Linux). Read them with `GoldenServer.log`, or over HTTP from `/golden/log`.

`python -m loadtest.servers.golden_server --ttft-ms 100 --gap-ms 20 --tokens 50 --port 9000`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from loadtest.servers import frames
from loadtest.servers.http1 import EVENT_STREAM
from loadtest.servers.simulation.http_server import Exchange, HttpConnection, HttpSite

MODEL = "golden"

End = Literal["ok", "in_band_error", "clean_truncation", "cut", "reset", "tokenless", "abort"]
ENDS: tuple[End, ...] = get_args(End)


@dataclass(frozen=True, slots=True)
class Schedule:
    """
    When what is sent, in milliseconds after the request was complete.

    `ends` are taken in turn by request; all but "ok" and "abort" end in the middle, after half of the tokens.
    """

    role_ms: float = 0.0
    ttft_ms: float = 100.0
    gap_ms: float = 20.0
    tokens: int = 20
    ends: tuple[End, ...] = ("ok",)

    def token_times_s(self) -> list[float]:
        """Seconds after the request, one per token."""
        return [(self.ttft_ms + k * self.gap_ms) / 1000 for k in range(self.tokens)]


@dataclass(slots=True)
class SentLog:
    """What one request really got; times are CLOCK_MONOTONIC seconds."""

    number: int
    request_id: str | None
    end: End
    received_at: float
    role_at: float = 0.0
    sent: list[float] = field(default_factory=list)
    """One time per token-bearing event."""


class GoldenServer:
    """Answers by a schedule and keeps the log."""

    def __init__(self, schedule: Schedule) -> None:
        self.log: list[SentLog] = []
        self._schedule = schedule
        self._numbers = itertools.count()

    def handle(self, exchange: Exchange) -> None:
        """Routes: the model list, the log, and chat for everything else that is posted."""
        path = exchange.request.path
        if exchange.request.method == "POST":
            number = next(self._numbers)
            end = self._schedule.ends[number % len(self._schedule.ends)]
            entry = SentLog(number, exchange.request.headers.get("x-request-id"), end, time.monotonic())
            self.log.append(entry)
            _Answer(exchange, self._schedule, entry).begin()
        elif path == "/v1/models":
            exchange.json(200, frames.models_body([MODEL], MODEL, 8192))
        elif path == "/golden/log":
            exchange.json(200, [asdict(entry) for entry in self.log])
        else:
            exchange.json(404, {"detail": "Not Found"})


class _Answer:
    """One stream in progress: a timer per event and no task, so that tens of thousands of events a second are exact."""

    def __init__(self, exchange: Exchange, schedule: Schedule, entry: SentLog) -> None:
        self._exchange, self._schedule, self._entry = exchange, schedule, entry
        self._chat = frames.ChatStream(model=MODEL, id=f"chatcmpl-{entry.number}")
        self._token = self._chat.content(" x")
        times = schedule.token_times_s()
        half = len(times) // 2
        self._times = times if entry.end in ("ok", "abort") else [] if entry.end == "tokenless" else times[:half]
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Waits for the moment of the role event."""
        self._exchange.on_disconnect = self._gone
        if self._is_due(self._schedule.role_ms / 1000):
            self._advance()

    def _gone(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _is_due(self, after_s: float) -> bool:
        """Whether that long has passed since the request; if not, `_advance` is called when it has."""
        due = self._entry.received_at + after_s
        if due <= time.monotonic():
            return True
        self._timer = asyncio.get_running_loop().call_at(due, self._advance)
        return False

    def _advance(self) -> None:
        """Sends everything that is due."""
        exchange, sent = self._exchange, self._entry.sent
        if not exchange.status:
            exchange.start(200, EVENT_STREAM)
            exchange.send(self._chat.role())
            self._entry.role_at = time.monotonic()
        while len(sent) < len(self._times):
            if not self._is_due(self._times[len(sent)]):
                return
            exchange.send(self._token)
            sent.append(time.monotonic())
        self._finish(len(sent))

    def _finish(self, tokens: int) -> None:
        exchange, chat, end = self._exchange, self._chat, self._entry.end
        match end:
            case "ok" | "abort" | "tokenless":
                exchange.send(chat.finish("abort" if end == "abort" else "stop") + chat.usage(22, tokens) + frames.DONE)
                exchange.end()
            case "in_band_error":
                exchange.send(frames.error_event() + frames.DONE)
                exchange.end()
            case "clean_truncation":
                exchange.end()
            case "cut":
                exchange.connection.cut()
            case "reset":
                exchange.connection.reset()


@contextlib.asynccontextmanager
async def golden_serving(schedule: Schedule, port: int = 0) -> AsyncIterator[tuple[str, GoldenServer]]:
    """A golden server on loopback; yields its URL and itself."""
    golden = GoldenServer(schedule)
    site = HttpSite(golden.handle, keep_alive_s=60.0)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpConnection(site), "127.0.0.1", port, family=socket.AF_INET)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", golden
    finally:
        server.close()
        for connection in list(site.connections):
            connection.abort()
        while site.connections:
            site.changed.clear()
            await site.changed.wait()


async def _serve(schedule: Schedule, port: int) -> None:
    async with golden_serving(schedule, port) as (url, _):
        print(f"listening on {url}", flush=True)
        await asyncio.Event().wait()


def main(argv: Sequence[str]) -> int:
    """Serves one schedule until interrupted."""
    default = Schedule()
    parser = argparse.ArgumentParser(prog="python -m loadtest.servers.golden_server", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--role-ms", type=float, default=default.role_ms)
    parser.add_argument("--ttft-ms", type=float, default=default.ttft_ms)
    parser.add_argument("--gap-ms", type=float, default=default.gap_ms)
    parser.add_argument("--tokens", type=int, default=default.tokens)
    parser.add_argument("--ends", nargs="+", choices=ENDS, default=["ok"], help="taken in turn by request")
    given = parser.parse_args(argv)
    schedule = Schedule(given.role_ms, given.ttft_ms, given.gap_ms, given.tokens, tuple(given.ends))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(schedule, given.port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
