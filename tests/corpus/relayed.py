"""
One interface to whatever relay the corpus suite runs against: the gateway over one of its paths, or the naive double.

Tests judge bytes on sockets. What only the gateway has (records, gauges) is asked through methods that let the double
pass, so that it fails for what it does on the wire and for nothing else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from gateway.record import ExchangeRecord
from gateway.types import Outcome, WorkerView
from tests.corpus import naive_relay
from tests.proxy import served
from tests.proxy.served import Listening, Served

GATEWAY_DEADLINE_S = 15.0
NAIVE_DEADLINE_S = 1.5
"""The double hangs in many tests: the suite must not wait long for each of them."""


@dataclass
class Relayed:
    """A running relay. `served` is the gateway behind it, None for the double."""

    port: int
    server: uvicorn.Server
    served: Served | None = None

    async def ended(self, *outcomes: Outcome, index: int = 0) -> ExchangeRecord | None:
        """
        Wait for the end of the exchange with that number; it must be counted as one of `outcomes`.

        Returns:
            Its record; None for the double, which counts nothing.
        """
        if self.served is None:
            return None
        record = await self.served.records.record(index)
        assert record.outcome in outcomes, (record.outcome, record.detail)
        return record

    async def idle(self) -> None:
        """Wait until every in-flight count, lease and connection in use of the gateway is back to zero."""
        if self.served is not None:
            await self.served.idle()

    def blamed(self) -> list[str]:
        """Workers that were reported as failing, in order."""
        return [] if self.served is None else [failure.worker for failure in self.served.failures]

    @property
    def is_gateway(self) -> bool:
        """False for the double: for expectations about what the double has no word for."""
        return self.served is not None


Relay = Callable[..., AbstractAsyncContextManager[Relayed]]
"""`relay(*workers, **options)`: the options of `tests.proxy.served.gateway` (the double ignores them)."""


@asynccontextmanager
async def gateway(
    *workers: Listening | WorkerView, direct: bool, deadline_s: float = GATEWAY_DEADLINE_S, **options: Any
) -> AsyncIterator[Relayed]:
    """The gateway; what happens inside takes at most `deadline_s` seconds."""
    async with asyncio.timeout(deadline_s), served.gateway(*workers, direct=direct, **options) as running:
        yield Relayed(running.port, running.server, running)


@asynccontextmanager
async def naive(*workers: Listening | WorkerView, deadline_s: float = 0.0, **options: Any) -> AsyncIterator[Relayed]:
    """The double, on plain uvicorn."""
    del deadline_s, options
    addresses = [worker.address if isinstance(worker, WorkerView) else worker for worker in workers]
    async with asyncio.timeout(NAIVE_DEADLINE_S), httpx.AsyncClient(timeout=None, trust_env=False) as client:
        app = naive_relay.create_app([f"http://{address.host}:{address.port}" for address in addresses], client)
        config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        await server.startup([sock])
        await server.on_tick(0)
        try:
            yield Relayed(sock.getsockname()[1], server)
        finally:
            for listener in server.servers:
                listener.close()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            for task in list(server.server_state.tasks):
                task.cancel()
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
