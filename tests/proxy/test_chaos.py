"""Everything at once, at random: afterwards every count is zero and the relay serves as before."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from gateway.proxy.policy import ModelPolicy, TimeLimits
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Fin, Reset, Script, Sleep, Stall, Step
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, ask, chat, connect, post

pytestmark = pytest.mark.anyio

EVENTS = frames.ChatStream().events(["a"] * 20)
CLIENTS = 40


def misbehave(dice: random.Random) -> Script:
    """One worker's answer: usually good, sometimes anything else."""
    fate = dice.random()
    if fate < 0.5:
        return scripts.stream(EVENTS, cut_every=dice.choice([0, 0, 50]))
    if fate < 0.6:
        return scripts.chat_json()
    if fate < 0.7:
        return dice.choice(list(scripts.ERRORS.values()))
    ends: list[Step] = [Reset(), Fin(), Stall()]
    if fate < 0.9:
        cut = dice.randrange(len(EVENTS))
        slow: list[bytes | Step] = [Sleep(0.01), *EVENTS[:cut]]
        return scripts.stream(slow, end=dice.choice(ends))
    return (dice.choice(ends),)


async def one_client(port: int, dice: random.Random, requests: int) -> None:
    """Sends requests, reads some answers, leaves others in every way."""
    done = 0
    while done < requests:
        async with connect(port, receive_buffer=dice.choice([None, 4096])) as client:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while done < requests:
                    done += 1
                    client.send(post(CHAT, chat(stream=dice.random() < 0.8)))
                    fate = dice.random()
                    if fate < 0.15:
                        client.reset()
                        break
                    if fate < 0.3:
                        await asyncio.sleep(dice.random() * 0.02)
                        client.close()
                        break
                    answer = await client.head()
                    if fate < 0.4:
                        client.half_close()
                        break
                    await client.rest(answer)
                    if not answer.complete:
                        break


@pytest.mark.parametrize("total", [400, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
async def test_nothing_leaks(gateway: Gateway, total: int) -> None:
    """Random cuts, resets, hangs, departures: no exchange, lease or connection stays behind."""
    dice = random.Random(total)

    def script(_: RecordedRequest) -> Script:
        return misbehave(dice)

    policy = ModelPolicy(TimeLimits(first_byte_s=0.3, first_token_s=0.3, idle_s=0.3))
    async with (
        asyncio.timeout(60 + total / 20),
        FaultServer(script) as a,
        FaultServer(script) as b,
        gateway(a, b, policy=policy) as served,
    ):
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(one_client(served.port, random.Random(number), total // CLIENTS))
        await served.idle()

        assert served.busy() == {}
        records = served.records.finished_records
        outcomes = {record.outcome for record in records}
        assert Outcome.INTERNAL not in outcomes
        assert {Outcome.OK, Outcome.CLIENT_CLOSED, Outcome.UPSTREAM_TIMEOUT} <= outcomes
        answer = await ask(served.port, post(CHAT, chat(stream=False)))
        assert answer.status in (200, 400, 404, 405, 429, 500, 502, 503, 504)
