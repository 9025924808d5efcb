"""A rolling restart under load: nobody who asks notices."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx
import pytest

from tests.cli.fleet_file import READY_S, FleetFile, document, model

pytestmark = [pytest.mark.integration, pytest.mark.anyio, pytest.mark.timeout(180)]

RATE = 10.0
TOKENS = 60
MOST_WAIT_S = 10.0
"""On a machine that does other things; nobody's request is to hang."""


@dataclass
class Stream:
    """What one client saw: events with a token, the longest silence, and how it ended."""

    events: int = 0
    longest_wait_s: float = 0.0
    whole: bool = False
    failure: str = ""


async def ask(client: httpx.AsyncClient, url: str, stream: Stream) -> None:
    """One stream, no retries; every wait counts, the one for the first byte included."""
    body = {"model": "m", "prompt": "count", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    last = time.monotonic()
    try:
        async with client.stream("POST", url, json=body) as answer:
            if answer.status_code != 200:
                stream.failure = f"{answer.status_code} {(await answer.aread())[:200]!r}"
                return
            async for line in answer.aiter_lines():
                now = time.monotonic()
                stream.longest_wait_s = max(stream.longest_wait_s, now - last)
                last = now
                stream.events += '"text":' in line
                stream.whole = stream.whole or line == "data: [DONE]"
    except httpx.HTTPError as exc:
        stream.failure = f"{type(exc).__name__}: {exc}"


async def arrivals(until: anyio.Event) -> AsyncIterator[None]:
    """Open loop: a request every 1/RATE seconds, whatever became of those before."""
    due = time.monotonic()
    while not until.is_set():
        yield
        due += 1 / RATE
        await anyio.sleep(max(0.0, due - time.monotonic()))


async def test_nobody_notices_a_rolling_restart(tmp_path: Path) -> None:
    """Both workers are replaced behind four gateway processes under ten new streams a second: every stream is whole,
    and whenever one looks, a worker is in rotation."""
    fleet = FleetFile(tmp_path, document(processes=4, models={"m": model("--sim-itl-ms", "8")}))
    with fleet.served:
        await anyio.to_thread.run_sync(lambda: fleet.wait_states(m_0="ready", m_1="ready"))
        await anyio.to_thread.run_sync(lambda: fleet.served.wait_ready(within_s=READY_S))
        before = {worker["pid"] for worker in fleet.workers().values()}
        streams: list[Stream] = []
        looks: list[list[str]] = []
        over = anyio.Event()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as client,
            anyio.create_task_group() as group,
        ):

            async def load() -> None:
                async for _ in arrivals(over):
                    streams.append(Stream())
                    group.start_soon(ask, client, f"{fleet.served.base}/v1/completions", streams[-1])

            async def look() -> None:
                while not over.is_set():
                    found = await anyio.to_thread.run_sync(fleet.workers)
                    looks.append([worker["state"] for worker in found.values()])

            group.start_soon(load)
            group.start_soon(look)
            done = await anyio.to_thread.run_sync(lambda: fleet.gateway("workers", "restart", "m"))
            over.set()
        after = {worker["pid"] for worker in fleet.workers().values()}

    assert 0 == done.returncode, done.stdout + done.stderr
    assert before.isdisjoint(after)
    assert len(streams) > RATE
    assert [] == [states for states in looks if "ready" not in states]
    assert [] != [states for states in looks if states != ["ready", "ready"]]
    assert [] == [stream.failure for stream in streams if stream.failure]
    assert [] == [stream for stream in streams if not stream.whole or stream.events < TOKENS]
    assert max(stream.longest_wait_s for stream in streams) < MOST_WAIT_S
