"""
Do the gateway's own times agree with its client's clock? Streams are timed on the client's side, byte by byte, and
compared with what the gateway's log line says of the same request.

The client knows when its request left and when each token came in; the gateway logs time to first token, time per
output token and duration. Loopback and two event loops lie between the two clocks, so a median difference of up to a
millisecond is what agreement looks like. Sends traffic to 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from loadtest.bench import targets
from loadtest.bench.processes import free_ports, running, wait_answering

CONCURRENCY = 8
TOKENS = 32
LIMIT_MS = 1.0
LOG_DEADLINE_S = 10.0
_TOKEN = re.compile(rb"#\d+@\d+ ")
_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Seen:
    """One stream as its client saw it, in milliseconds."""

    ttft_ms: float
    tpot_ms: float
    duration_ms: float


async def one_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> Seen:
    """Ask for a stream, and time it."""
    body = json.dumps({"model": targets.MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    sent = time.perf_counter()
    writer.write(head + body)
    first = last = 0.0
    tail = b""
    while not tail.endswith(_END):
        data = await reader.read(65536)
        now = time.perf_counter()
        if not data:
            sys.exit(f"the stream {name} broke off: {tail!r}")
        # A token's stamp is in the middle of its event, which may arrive in two reads; the second one completes it.
        if _TOKEN.search(tail[-40:] + data):
            first = first or now
            last = now
        tail = (tail + data)[-64:]
    return Seen((first - sent) * 1000, (last - first) * 1000 / (TOKENS - 1), (now - sent) * 1000)


async def all_streams(port: int, count: int) -> dict[str, Seen]:
    """`count` streams over a few connections at a time, by request id."""
    seen: dict[str, Seen] = {}
    names = iter([f"clock-{number}" for number in range(count)])

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for name in names:
            seen[name] = await one_stream(reader, writer, name)
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(client())
    return seen


def logged(log: Path, wanted: set[str]) -> dict[str, dict[str, Any]]:
    """The request lines of these ids, once all are there."""
    deadline = time.monotonic() + LOG_DEADLINE_S
    while True:
        lines: dict[str, dict[str, Any]] = {}
        for line in log.read_text(errors="replace").splitlines():
            if '"event":"request"' in line:
                event = json.loads(line)
                lines[event["request_id"]] = event
        if wanted <= lines.keys():
            return lines
        if time.monotonic() > deadline:
            sys.exit(f"{len(wanted - lines.keys())} of {len(wanted)} requests have no line in the log")
        time.sleep(0.1)


def compare(seen: dict[str, Seen], lines: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """Client's value less the log's, in milliseconds, by field."""
    return {
        field: [getattr(mine, field) - lines[name][field] for name, mine in seen.items()]
        for field in ("ttft_ms", "tpot_ms", "duration_ms")
    }


def main() -> None:
    """Command line of `make bench`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="log-clock-") as name, ExitStack() as stack:
        folder = Path(name)
        port, admin_port, *upstreams = free_ports(4)
        for upstream in upstreams:
            worker = [sys.executable, "-m", "loadtest.bench.paced_upstream", str(upstream), "--tokens", str(TOKENS)]
            stack.enter_context(running(worker, folder / f"upstream-{upstream}.log"))
            wait_answering(upstream, "the scripted worker", within_s=15)
        target = targets.gateway(folder, port, admin_port, tuple(upstreams))
        log = folder / "gateway.log"
        stack.enter_context(running(list(target.command), log))
        wait_answering(port, target.name, within_s=60, log=log)
        seen = uvloop.run(all_streams(port, options.requests))
        differences = compare(seen, logged(log, set(seen)))
    worst = 0.0
    for field, values in differences.items():
        ordered = sorted(values)
        median = statistics.median(ordered)
        worst = max(worst, abs(median))
        print(
            f"{field:<12} client less log: median {median:.3f} ms, "
            f"p5 {ordered[len(ordered) // 20]:.3f} ms, p95 {ordered[len(ordered) * 19 // 20]:.3f} ms"
        )
    verdict = "passed" if worst <= LIMIT_MS else "FAILED"
    print(f"log and client differ by {worst:.3f} ms in the median (bar {LIMIT_MS:g} ms): {verdict}")


if __name__ == "__main__":
    main()
