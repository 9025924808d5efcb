"""How streams end: a failed one never looks like a complete one, and the client is told in its family's own form."""

from __future__ import annotations

import json

import pytest

from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Gate, Reset
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, chat, connect, post

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(usage=False)


@pytest.mark.parametrize("cut", [1, 3, 5], ids=["after-role", "mid-content", "before-done"])
async def test_c01_a_reset_stream_is_told_as_an_error(relay: Relay, cut: int) -> None:
    """Exactly the received events, one error event, the end; nothing invented, nothing sent twice."""
    script = scripts.stream([*EVENTS[:cut], Gate("cut")], end=Reset())
    async with (
        FaultServer(script) as worker,
        FaultServer(script) as other,
        relay(worker, other) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        answer = await client.head()
        while len(answer.events) < cut:
            await client.chunk(answer)
        worker.release("cut")
        other.release("cut")
        await client.rest(answer)

        assert answer.complete
        assert EVENTS[:cut] == answer.events[:-1]
        assert set(json.loads(answer.events[-1].removeprefix(b"data: "))["error"]) == {
            "message",
            "type",
            "param",
            "code",
        }
        assert len(worker.requests) + len(other.requests) == 1
        await gate.ended(Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_INCOMPLETE)
        await gate.idle()
