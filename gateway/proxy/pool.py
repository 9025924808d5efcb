"""
Connections kept open to the workers, one pool for each launch of each worker.

A pool never queues: it hands out an idle connection or none, and how many are in use is decided by admission, not
here. Idle connections are dropped before the worker would drop them (vLLM does after 5 s), newest first in use, so
that a quiet fleet falls back to few connections.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from gateway.protocol.known_event import KnownEvents
from gateway.proxy.upstream import UpstreamConnection, connect, tls_context
from gateway.types import WorkerAddress, WorkerView

IDLE_EXPIRY_S: Final = 2.5
"""Half of vLLM's keep-alive time of 5 s: a request must never meet a connection the worker is just closing."""
MAX_IDLE: Final = 256
"""Idle connections kept to one worker."""
LINGER_S: Final = 0.25
"""A worker whose stream has said its last event gets so long to end the message before its connection is closed."""


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Connections to one launch of one worker. `in_use` is zero when no exchange runs."""

    worker: str
    launch_id: str
    in_use: int
    idle: int


class _WorkerPool:
    """Connections to one launch of one worker, and what they have learnt of it; `idle` oldest first."""

    __slots__ = ("address", "context", "idle", "in_use", "known_events", "name", "sweeper")

    def __init__(self, name: str, address: WorkerAddress) -> None:
        self.name = name
        self.address = address
        self.idle: list[UpstreamConnection] = []
        self.in_use: set[UpstreamConnection] = set()
        self.context: ssl.SSLContext | None = tls_context(address)
        self.sweeper: asyncio.TimerHandle | None = None
        self.known_events = KnownEvents()

    def discard(self, connection: UpstreamConnection) -> None:
        self.in_use.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def close_idle(self) -> None:
        if self.sweeper is not None:
            self.sweeper.cancel()
            self.sweeper = None
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.abort()


class ConnectionPools:
    """All upstream connections of a gateway process. Use within one event loop."""

    def __init__(self, *, idle_expiry_s: float = IDLE_EXPIRY_S, max_idle: int = MAX_IDLE) -> None:
        self._idle_expiry_s = idle_expiry_s
        self._max_idle = max_idle
        self._pools: dict[tuple[str, str], _WorkerPool] = {}
        self._closed = False

    def take(self, worker: WorkerView) -> UpstreamConnection | None:
        """An idle connection to this launch of `worker`, now in use; None when there is none."""
        pool = self._pools.get((worker.name, worker.launch_id))
        if pool is None:
            return None
        idle = pool.idle
        oldest_allowed = monotonic() - self._idle_expiry_s
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since > oldest_allowed:
                pool.in_use.add(connection)
                return connection
            connection.abort()
        return None

    async def connect(self, worker: WorkerView) -> UpstreamConnection:
        """
        A fresh connection to `worker`, in use.

        Raises:
            UpstreamConnectError: There is none to be had.
        """
        key = (worker.name, worker.launch_id)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _WorkerPool(worker.name, worker.address)
        connection = await connect(pool.address, pool.context, pool.discard, pool.known_events)
        if not connection.closed:
            pool.in_use.add(connection)
        return connection

    def give_back(self, worker: WorkerView, connection: UpstreamConnection) -> None:
        """End the use of `connection`: kept when it is reusable, closed otherwise."""
        pool = self._pools.get((worker.name, worker.launch_id))
        if pool is None:
            connection.abort()
            return
        pool.in_use.discard(connection)
        if self._closed or not connection.reusable or len(pool.idle) >= self._max_idle:
            connection.abort()
            return
        connection.idle_since = monotonic()
        pool.idle.append(connection)
        if pool.sweeper is None:
            pool.sweeper = asyncio.get_running_loop().call_later(self._idle_expiry_s, self._sweep, pool)

    def linger(self, worker: WorkerView, connection: UpstreamConnection) -> None:
        """
        End the use of `connection` whose stream is over though its message is not: it is closed unless it completes
        at once, which costs nobody anything.
        """
        timer = asyncio.get_running_loop().call_later(LINGER_S, connection.abort)

        def completed(done: UpstreamConnection) -> None:
            timer.cancel()
            self.give_back(worker, done)

        connection.detach(completed)

    def retain(self, workers: Iterable[WorkerView]) -> None:
        """Close the idle connections to every launch that is not among `workers`."""
        kept = {(worker.name, worker.launch_id) for worker in workers}
        for key in [key for key in self._pools if key not in kept]:
            pool = self._pools[key]
            pool.close_idle()
            if not pool.in_use:
                del self._pools[key]

    def counts(self) -> list[PoolCounts]:
        """What is open now."""
        return [
            PoolCounts(name, launch_id, len(pool.in_use), len(pool.idle))
            for (name, launch_id), pool in self._pools.items()
        ]

    def close(self) -> None:
        """Close every connection; those in use fail their exchanges."""
        self._closed = True
        for pool in self._pools.values():
            pool.close_idle()
            for connection in list(pool.in_use):
                connection.abort()

    def _sweep(self, pool: _WorkerPool) -> None:
        now = monotonic()
        oldest_allowed = now - self._idle_expiry_s
        idle = pool.idle
        expired = 0
        while expired < len(idle) and idle[expired].idle_since <= oldest_allowed:
            expired += 1
        gone = idle[:expired]
        del idle[:expired]
        for connection in gone:
            connection.abort()
        pool.sweeper = None
        if idle:
            # Not sooner than the timer's own unit, or it would find nothing and come again at once.
            delay_s = max(0.001, idle[0].idle_since + self._idle_expiry_s - now)
            pool.sweeper = asyncio.get_running_loop().call_later(delay_s, self._sweep, pool)
