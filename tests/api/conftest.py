"""The public application on real sockets, as `tests/proxy/served.py` runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.proxy import served


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvloop, as the gateway process runs."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def running(anyio_backend: object) -> AsyncIterator[served.Served]:
    """A gateway in front of one worker that answers everything with a chat completion."""
    async with FaultServer(scripts.chat_json()) as worker, served.gateway(worker) as gateway:
        yield gateway
