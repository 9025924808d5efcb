"""Connecting to the black hole neither succeeds nor fails."""

from __future__ import annotations

import asyncio
import sys

import pytest

from loadtest.servers.blackhole import blackhole

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="relies on how Linux treats a full accept queue"),
]


async def test_connecting_times_out() -> None:
    """So that a connect time-out can be tried on loopback."""
    async with asyncio.timeout(20), blackhole() as port:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 0.3)
