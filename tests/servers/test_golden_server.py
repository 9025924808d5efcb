"""The yardstick: sends no earlier than scheduled, logs what it sent, and ends as told."""

from __future__ import annotations

import asyncio
import time

import anyio.to_thread
import pytest

from loadtest.call import Call
from loadtest.http_client import Client
from loadtest.ledger import Ledger, RequestRecord
from loadtest.scenarios.base import Request
from loadtest.servers.golden_server import ENDS, GoldenServer, Schedule, golden_serving
from loadtest.target import parse_target

pytestmark = pytest.mark.anyio

CHAT = Request("/v1/chat/completions", b"{}", True, "chat")


async def measure(url: str, requests: int) -> list[RequestRecord]:
    """Asks one request after the other with the load test's own client."""
    ledger, target = Ledger(), parse_target(url)
    client = Client(target, read_timeout_s=10)

    def ask(number: int) -> RequestRecord:
        ledger.schedule()
        now = time.perf_counter()
        return Call(CHAT, ledger, now, now, f"r{number}").perform(client, target, None)

    records = [await anyio.to_thread.run_sync(ask, n) for n in range(requests)]
    client.close()
    return records


async def test_nothing_is_sent_before_its_time_and_all_of_it_is_logged() -> None:
    """One logged time per token, in order, each at or after its schedule."""
    schedule = Schedule(ttft_ms=20, gap_ms=5, tokens=10)
    async with asyncio.timeout(60), golden_serving(schedule) as (url, golden):
        await measure(url, 1)

    entry = golden.log[0]
    assert entry.request_id == "r0"
    assert len(entry.sent) == 10
    assert all(s >= entry.received_at + at for s, at in zip(entry.sent, schedule.token_times_s(), strict=True))


async def test_every_end_is_classified_by_the_load_test_as_it_was_meant() -> None:
    """All ends in turn, from one server."""
    meant = {"clean_truncation": "truncated", "cut": "truncated", "abort": "aborted"}
    schedule = Schedule(ttft_ms=5, gap_ms=1, tokens=6, ends=ENDS)
    async with asyncio.timeout(60), golden_serving(schedule) as (url, _):
        records = await measure(url, len(ENDS))

    assert [r.outcome for r in records] == [meant.get(end, end) for end in ENDS]


async def test_the_load_test_measures_what_the_server_sent() -> None:
    """
    TTFT and gaps follow the logged send times, and the role event 80 ms earlier changes nothing.

    Bounds are wide on purpose (this machine may be busy); the figures belong to the benchmarks.
    """
    schedule = Schedule(role_ms=0, ttft_ms=80, gap_ms=40, tokens=20)
    async with asyncio.timeout(60), golden_serving(schedule) as (url, golden):
        records = await measure(url, 3)

    for record, entry in zip(records, golden.log, strict=True):
        true_gaps = [b - a for a, b in zip(entry.sent, entry.sent[1:], strict=False)]
        assert record.ttft_s is not None
        assert record.ttft_s >= 0.08
        assert len(record.gaps_s) == len(true_gaps) == 19
        assert sum(record.gaps_s) == pytest.approx(sum(true_gaps), rel=0.5)


async def test_a_client_that_leaves_stops_its_schedule() -> None:
    """No task is left behind."""
    async with asyncio.timeout(60), golden_serving(Schedule(ttft_ms=60_000)) as (url, golden):
        target = parse_target(url)
        reader, writer = await asyncio.open_connection(target.host, target.port)
        writer.write(b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
        await reader.readuntil(b"assistant")
        writer.close()
        await writer.wait_closed()

    assert isinstance(golden, GoldenServer)
    assert golden.log[0].sent == []
