"""A storm: chaotic clients against a gateway over chaotic workers, and what must hold when it has passed."""

from __future__ import annotations

import asyncio
import gc
import os
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gateway.proxy.policy import ModelPolicy, TimeLimits
from gateway.types import Outcome, Phase, Stage
from loadtest.servers.fault_server import FaultServer
from tests.chaos.clients import ChaoticClient, body_of
from tests.chaos.ledger import GARBAGE, Asked, verdicts
from tests.chaos.workers import CALM, ChaoticWorkers
from tests.proxy import served
from tests.proxy.raw_client import CHAT, ask, post

WORKERS = 4
CLIENTS = 32
IDLE_EXPIRY_S = 0.5
CLOSED_WITHIN_S = 1.0
"""The promise: so long after a client has left, its worker's socket is closed."""
BUSY_MACHINE = 5
"""How much slower than promised a test may be on a machine that does other things."""
LIVING = (
    *("Exchange", "Attempt", "Answer", "ClientSide", "Watch", "WorkerLease", "LimitTimer", "UpstreamConnection"),
    *("Turn", "Place"),
)
"""Types of the gateway of which no instance may be alive at idle."""


@dataclass
class Storm:
    """A gateway, its workers, and the books of the current round."""

    seed: int
    running: served.Served
    servers: list[FaultServer]
    asked: list[Asked] = field(default_factory=list)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    slowest_close_s: float = 0.0
    rounds: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    """Of those that waited for a permit, in rounds that were forgotten: all, who left in line, who was tried again."""
    unseen: list[str] = field(default_factory=list)
    """Exceptions that nobody caught: the event loop's own, from callbacks and from tasks."""

    async def rage(self, requests: int) -> None:
        """One round of that many requests, judged at its end; raises AssertionError with what is wrong."""
        self.rounds += 1
        supply = iter(range(self.rounds * 1_000_000, self.rounds * 1_000_000 + requests))
        try:
            async with asyncio.timeout(30 + requests / 20), asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    dice = Random(f"{self.seed} client {self.rounds} {number}")
                    group.create_task(ChaoticClient(self.running.port, dice, supply, self.asked).run())
        except TimeoutError:
            waiting = [one for one in self.asked if not one.left and not one.status]
            raise AssertionError(f"in flight {self.running.busy()}, without an answer: {waiting[:20]}") from None
        async with asyncio.timeout(CLOSED_WITHIN_S * BUSY_MACHINE):
            await self.running.idle()
        await self._all_closed()
        self._judge(requests)
        assert not self.unseen, f"{len(self.unseen)} uncaught exceptions:\n" + "\n".join(self.unseen[:5])
        await self._still_serves()
        await self._all_closed()

    async def _all_closed(self) -> None:
        """Connections of clients end with the clients, those to workers when they have been idle too long."""
        running = self.running
        async with asyncio.timeout((IDLE_EXPIRY_S + CLOSED_WITHIN_S) * BUSY_MACHINE):
            await served.until(lambda: not running.server.server_state.connections)
            await served.until(lambda: not running.server.server_state.tasks)
            await served.until(lambda: not any(count.idle for count in running.pools.counts()))
            for server in self.servers:
                await server.idle()

    def _judge(self, requests: int) -> None:
        records = self.running.records.finished_records
        assert requests == len(self.asked)
        wrong = verdicts(self.asked, records)
        assert not wrong, f"{len(wrong)} contradictions:\n" + "\n".join(wrong[:20])
        proper = [record for record in records if not record.request_id.startswith(GARBAGE)]
        outcomes = Counter(record.outcome for record in proper)
        heard_of = len({record.request_id for record in proper})
        assert heard_of == outcomes.total()
        assert sum(not one.left and not one.cut_off for one in self.asked) <= heard_of <= requests
        self.outcomes += outcomes
        self._judge_closing()

    def _judge_closing(self) -> None:
        """A worker's socket is closed a second after the client left, whatever it was doing."""
        records = self.running.records.finished_records
        abandoned = {record.request_id for record in records if record.outcome is Outcome.CLIENT_CLOSED}
        left_at = {one.number: one.left_at for one in self.asked if one.number in abandoned}
        for server in self.servers:
            for connection in server.connections:
                if not connection.requests or not connection.requests[-1].complete.is_set():
                    continue
                since = left_at.get(connection.requests[-1].json()["user"])
                if since is not None and connection.closed_at is not None:
                    self.slowest_close_s = max(self.slowest_close_s, connection.closed_at - since)
        assert self.slowest_close_s <= CLOSED_WITHIN_S * BUSY_MACHINE

    async def _still_serves(self) -> None:
        """After all that, every kind of answer comes as ever."""
        for stream in (True, False):
            answer = await ask(self.running.port, post(CHAT, body_of(CALM, CHAT, stream)))
            assert (200, True) == (answer.status, answer.complete)
        await self.running.idle()

    def forget(self) -> None:
        """Drop the books, so that what is left in memory is the gateway's."""
        waited = [one for one in self.running.records.finished_records if Stage.ADMISSION in one.stages]
        self.waits["all"] += len(waited)
        self.waits["left"] += sum(one.disconnect is Phase.QUEUED for one in waited)
        self.waits["again"] += sum(bool(one.retries) for one in waited)
        self.asked.clear()
        self.running.records.finished_records.clear()
        self.running.failures.clear()
        for server in self.servers:
            server.requests.clear()
            server.connections.clear()
        gc.collect()


def survivors() -> Counter[str]:
    """Objects of the gateway that belong to one request, and are alive."""
    gc.collect()
    return Counter(
        type(one).__name__
        for one in gc.get_objects()
        if type(one).__name__ in LIVING
        and str(type(one).__module__).startswith(("gateway.proxy.", "gateway.fleet.", "gateway.admission."))
    )


def open_files() -> int:
    """Descriptors of this process; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return 0


def tasks(known: Iterable[asyncio.Task[object]] = ()) -> set[asyncio.Task[object]]:
    """Tasks alive beside `known`."""
    return asyncio.all_tasks() - set(known)


@asynccontextmanager
async def storm(seed: int, *, direct: bool, permits: int = 0) -> AsyncIterator[Storm]:
    """
    A gateway over chaotic workers; limits are short, so that stalled workers do not hold the storm up.

    Args:
        permits: Requests a worker may have at a time, so that others wait; 0 for no limit.
    """
    dice = Random(f"{seed} gateway")
    workers = ChaoticWorkers(seed)
    policy = ModelPolicy(
        TimeLimits(first_byte_s=0.4, first_token_s=0.4, idle_s=0.4, stalled_client_s=20, error_body_s=0.4),
        heartbeat_s=dice.choice((0.0, 0.1)),
    )
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FaultServer(workers.script)) for _ in range(WORKERS)]
        running = await stack.enter_async_context(
            served.gateway(
                *servers,
                direct=direct,
                policy=policy,
                idle_expiry_s=IDLE_EXPIRY_S,
                permits={"sim": permits} if permits else None,
            )
        )
        weather = Storm(seed, running, servers)

        def uncaught(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            lines = traceback.format_exception(error) if isinstance(error, BaseException) else []
            weather.unseen.append("\n".join([str(context.get("message")), *lines]))

        asyncio.get_running_loop().set_exception_handler(uncaught)
        yield weather
        assert not weather.unseen
