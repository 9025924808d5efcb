"""
What an exchange holds, above all the request's body, is free as soon as it has ended, however it has ended.

The collector of a gateway process runs rarely; until then, a burst of failures would keep all its bodies in memory.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from gateway.proxy.exchange import Exchange
from gateway.types import Outcome, Phase
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Fin, Stall
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, ask, chat, connect, post
from tests.proxy.served import model_policy, until

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(["Par", "is"])


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Nothing is freed but by its last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def exchanges() -> int:
    return sum(isinstance(one, Exchange) for one in gc.get_objects())


@pytest.mark.parametrize("case", ["good", "busy", "closes", "refuses", "cut", "silent", "unknown"])
async def test_an_answered_exchange_is_free(gateway: Gateway, case: str) -> None:
    """Whether it succeeded at once or after a retry, or was told of a failure as a status or inside its stream."""
    script = {
        "busy": scripts.ERRORS["busy"],
        "closes": scripts.closes_at_once(),
        "cut": scripts.truncated(EVENTS[:2], Fin()),
        "silent": scripts.never_answers(),
    }.get(case, scripts.chat_stream())
    async with (
        asyncio.timeout(10),
        FaultServer(script, refuse=case == "refuses") as first,
        FaultServer(script, refuse=case == "refuses") as second,
        gateway(first, second, policy=model_policy(first_byte_s=0.2)) as served,
    ):
        await ask(served.port, post(CHAT, chat() | ({"model": "nobody"} if case == "unknown" else {})))
        record = await served.records.record()
        await until(lambda: not served.server.server_state.tasks)

        assert (record.outcome is Outcome.OK) == (case == "good")
        assert exchanges() == 0


@pytest.mark.parametrize("phase", [Phase.HEADERS, Phase.STREAMING])
async def test_the_exchange_of_a_client_that_left_is_free(gateway: Gateway, phase: Phase) -> None:
    """Clients leave all the time, and often many at once."""
    script = scripts.never_answers() if phase is Phase.HEADERS else scripts.truncated(EVENTS[:2], Stall())
    async with asyncio.timeout(10), FaultServer(script) as worker, gateway(worker) as served:
        async with connect(served.port) as client:
            client.send(post(CHAT, chat()))
            await served.reached(phase)
        record = await served.records.record()
        await until(lambda: not served.server.server_state.tasks)

        assert record.outcome is Outcome.CLIENT_CLOSED
        assert exchanges() == 0
