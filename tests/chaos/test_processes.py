"""The same storm over four gateway processes: one book, whichever process a client has met."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Family, Outcome
from loadtest.servers.fault_server import FaultServer
from tests.chaos.clients import ChaoticClient
from tests.chaos.ledger import Asked, verdicts
from tests.chaos.storm import CLIENTS, WORKERS
from tests.chaos.workers import ChaoticWorkers
from tests.processes.fleet import Fleet, configured, fleet, until

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]

PROCESSES = 4
REQUESTS = 1_500
SHORT = {"first_byte_s": 0.4, "first_token_s": 0.4, "idle_s": 0.4}
"""Stalled workers do not hold the storm up."""
AT_REST = ("gateway_requests_in_flight", "gateway_worker_in_flight")


def recorded(log: Path) -> Iterator[ExchangeRecord]:
    """What the processes have logged of their exchanges, as far as a verdict needs it."""
    for line in log.read_text().splitlines():
        fields = json.loads(line)
        if fields.get("event") == "request":
            yield ExchangeRecord(
                request_id=fields["request_id"],
                endpoint=Endpoint(fields["endpoint"]),
                family=Family.CHAT,
                started_at_s=0.0,
                outcome=Outcome(fields["outcome"]),
                status=fields.get("status"),
                detail=fields.get("detail", ""),
            )


def defects(log: Path) -> list[str]:
    """What was logged that nobody expects: exceptions of callbacks and tasks."""
    return [line for line in log.read_text().splitlines() if json.loads(line).get("event") == "log"]


async def test_a_storm_over_four_processes_leaves_no_trace(tmp_path: Path, seed: int) -> None:
    """Every request is logged once and as what its client saw, the totals are those of the log, no count is left over,
    and no process has died of it."""
    workers, asked = ChaoticWorkers(seed), list[Asked]()
    async with asyncio.timeout(100), AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FaultServer(workers.script)) for _ in range(WORKERS)]
        settings = configured(PROCESSES, model={"timeouts": SHORT}, logging={"format": "json"})
        gateway = await stack.enter_async_context(fleet(tmp_path, settings, servers=servers))
        before = gateway.pids
        await rage(gateway, seed, asked)
        await until(lambda: not any(gateway.total(metric) for metric in AT_REST))
        await until(lambda: not any(worker.in_flight for worker in gateway.supervisor.report().workers))
        await until(lambda: not any(line.connections for line in gateway.lines))
        records = []

        def all_logged() -> bool:
            records[:] = recorded(tmp_path / "log")
            return len(records) == gateway.total("gateway_requests_total")

        await until(all_logged)
        counted = {outcome: gateway.total("gateway_requests_total", outcome) for outcome in Outcome}
        after = gateway.pids

    assert REQUESTS == len(asked)
    assert [] == verdicts(asked, records)
    assert Counter(record.outcome for record in records) == +Counter(counted)
    assert {Outcome.OK, Outcome.CLIENT_CLOSED, Outcome.UPSTREAM_INCOMPLETE} <= {record.outcome for record in records}
    assert [] == defects(tmp_path / "log")
    assert (PROCESSES, before) == (len(before), after)


async def rage(gateway: Fleet, seed: int, asked: list[Asked]) -> None:
    """The clients of a storm until all requests were made."""
    supply = iter(range(REQUESTS))
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            client = ChaoticClient(gateway.port, Random(f"{seed} processes {number}"), supply, asked)
            group.create_task(client.run())
