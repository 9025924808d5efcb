"""Connections: kept and reused on both sides, never leaked, never used a moment too late."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.app import KEEP_ALIVE_S
from gateway.proxy.pool import IDLE_EXPIRY_S
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Fin, Reset, Script, Send, Sleep, Stall, Step
from tests.corpus.expectations import EVENTS, error_object, read_events
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, RawConnection, ask, chat, connect, post
from tests.proxy.served import model_policy, until

pytestmark = pytest.mark.anyio

GOOD = scripts.stream(EVENTS)
WORKER_KEEP_ALIVE_S = 5.0
"""vLLM's, unless it is told otherwise."""


async def test_c20_streams_in_a_row_need_one_connection_on_each_side(relay: Relay) -> None:
    """Each answer ends properly, so both connections serve the next one."""
    async with FaultServer(GOOD) as worker, relay(worker) as gate, connect(gate.port) as client:
        for _ in range(20):
            client.send(post(CHAT, chat()))
            answer = await client.answer()
            assert (True, b"".join(EVENTS)) == (answer.complete, answer.body)

        assert 1 == len(worker.connections)
        await gate.idle()


async def test_c20_a_stream_whose_end_comes_late_gives_its_connection_back(relay: Relay) -> None:
    """The worker ends the message a moment after its last event: the client need not wait, the connection is kept."""
    script = scripts.stream([*EVENTS, Sleep(0.02)])
    async with FaultServer(script) as worker, relay(worker) as gate:
        for number in range(3):
            assert (await ask(gate.port, post(CHAT, chat()))).complete
            await worker.requests[number].answered.wait()
            # The end is on the wire; reading it takes the relay a moment.
            await asyncio.sleep(0.05)

        assert 1 == len(worker.connections)
        await gate.idle()


def echo(received: RecordedRequest) -> Script:
    """Answers with the prompt."""
    return scripts.completion_json(received.json()["prompt"])


async def test_c28_waves_over_reused_connections(relay: Relay) -> None:
    """Five waves of eight requests over four kept connections: every one arrives whole and gets its own answer."""
    seen: list[bytes] = []

    async def wave(client: RawConnection, number: int) -> None:
        for part in range(2):
            # Bodies of different lengths: leftovers of one would show in the next.
            body = {"model": "sim", "prompt": f"{number}-{part}-" + "x" * (number * 97 % 500), "max_tokens": 1}
            data = json.dumps(body).encode()
            seen.append(data)
            client.send(post("/v1/completions", data))
            answer = await client.answer()
            assert (200, body["prompt"]) == (answer.status, answer.json()["choices"][0]["text"])

    async with (
        FaultServer(echo) as worker,
        relay(worker) as gate,
        connect(gate.port) as a,
        connect(gate.port) as b,
        connect(gate.port) as c,
        connect(gate.port) as d,
    ):
        for number in range(5):
            await asyncio.gather(*(wave(client, number * 4 + i) for i, client in enumerate((a, b, c, d))))

        assert sorted(seen) == sorted(received.body for received in worker.requests)
        assert len(worker.connections) <= 4
        await gate.idle()


def test_c39_idle_connections_are_dropped_before_the_worker_does() -> None:
    """With room for the time a request needs to get there."""
    assert IDLE_EXPIRY_S <= WORKER_KEEP_ALIVE_S - 1


async def test_c39_an_expired_connection_is_not_used(relay: Relay) -> None:
    """After the idle time the connection is closed from this side, and the next request opens a fresh one."""
    async with FaultServer(GOOD) as worker, relay(worker, idle_expiry_s=0.05) as gate:
        for _ in range(2):
            assert (await ask(gate.port, post(CHAT, chat()))).complete
            await worker.idle()

        assert 2 == len(worker.connections)


async def test_c39_a_worker_that_closes_at_the_same_moment_costs_nothing(relay: Relay) -> None:
    """The worker closes idle connections just when the next request may be written: no client notices, ever."""
    script = (*GOOD, Sleep(0.02), Fin())
    async with FaultServer(script) as worker, relay(worker) as gate:
        for number in range(30):
            answer = await ask(gate.port, post(CHAT, chat(), {"x-request-id": f"r{number}"}))
            assert (200, b"".join(EVENTS)) == (answer.status, answer.body)
            await asyncio.sleep((0.017, 0.02, 0.023)[number % 3])

        answered = [received for received in worker.requests if received.sent]
        assert 30 == len(answered)
        assert [] == gate.blamed()
        for number in range(30):
            await gate.ended(Outcome.OK, index=number)


@pytest.mark.parametrize("end", [Fin(), Reset()], ids=["fin", "rst"])
@pytest.mark.parametrize("size", [10, 300_000], ids=["small", "large"])
async def test_c39_a_request_on_a_dying_connection_is_sent_again(relay: Relay, end: Step, size: int) -> None:
    """A reused connection that ends without a byte of answer: once more on a fresh one, with the whole body."""
    async with (
        FaultServer(GOOD, (end,), GOOD) as worker,
        relay(worker) as gate,
        connect(gate.port) as client,
    ):
        for _ in range(2):
            client.send(post(CHAT, chat(padding="x" * size)))
            answer = await client.answer()
            assert (200, b"".join(EVENTS)) == (answer.status, answer.body)

        assert worker.requests[0].body == worker.requests[2].body
        assert 2 == len([received for received in worker.requests if received.sent])
        assert [] == gate.blamed()


async def test_c40_idle_clients_are_kept_longer_than_their_pools_keep_them(relay: Relay) -> None:
    """The timer behind a finished answer runs for more than 75 seconds, so no client meets a closed connection."""
    async with (
        FaultServer(GOOD) as worker,
        relay(worker, keep_alive_s=KEEP_ALIVE_S) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        assert (await client.answer()).complete
        (connection,) = gate.server.server_state.connections

        def timers() -> list[Any]:
            """uvicorn's own behind what a task has answered, else the gateway's."""
            both = (connection.timeout_keep_alive_task, vars(connection)["_idle_timer"])
            return [timer for timer in both if timer is not None]

        await until(lambda: bool(timers()))
        (timer,) = timers()

        assert timer.when() - asyncio.get_running_loop().time() > 75


@pytest.mark.soak
@pytest.mark.parametrize("idle_s", [30, 70])
async def test_c40_an_idle_client_is_served_again(relay: Relay, idle_s: float) -> None:
    """In real time: silent for longer than common servers wait, then a request on the same connection."""
    async with (
        FaultServer(GOOD) as worker,
        relay(worker, keep_alive_s=KEEP_ALIVE_S, deadline_s=idle_s + 20) as gate,
        connect(gate.port) as client,
    ):
        client.send(post(CHAT, chat()))
        assert (await client.answer()).complete
        await asyncio.sleep(idle_s)
        client.send(post(CHAT, chat()))
        assert (await client.answer()).complete

        assert 2 == len(worker.requests)


async def test_c40_only_idle_connections_are_closed(relay: Relay) -> None:
    """A stream longer than the keep-alive time is whole; afterwards the idle connection ends with FIN."""
    script = scripts.stream([*EVENTS[:2], Sleep(0.5), *EVENTS[2:]])
    async with (
        FaultServer(script) as worker,
        relay(worker, keep_alive_s=0.4) as gate,
        connect(gate.port) as client,
    ):
        for _ in range(2):
            client.send(post(CHAT, chat()))
            answer = await client.answer()
            assert (True, b"".join(EVENTS)) == (answer.complete, answer.body)
        assert b"" == await client.reader.read()


async def test_c41_many_aborted_streams_leave_room(relay: Relay) -> None:
    """Two hundred streams cut after their first event, then ten whole ones: nothing is held, nothing waits."""

    def script(received: RecordedRequest) -> Script:
        return GOOD if received.json().get("max_tokens") == 7 else scripts.stream([EVENTS[0]], end=Stall())

    async def abort(port: int) -> None:
        async with connect(port) as client:
            client.send(post(CHAT, chat()))
            await read_events(client, await client.head(), 1)

    async with FaultServer(script) as worker, relay(worker) as gate:
        for _ in range(10):
            await asyncio.gather(*(abort(gate.port) for _ in range(20)))
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*(ask(gate.port, post(CHAT, chat(max_tokens=7))) for _ in range(10)))

        assert [b"".join(EVENTS)] * 10 == [answer.body for answer in answers]
        assert 210 == len(worker.requests)
        await gate.idle()
        await worker.until(lambda: worker.open_connections <= 10)


async def test_c42_refused_streams_leak_nothing(relay: Relay) -> None:
    """A hundred streams answered 429 with a megabyte each: every one is told, no connection stays in use."""
    refusal = scripts.answer(429, b'{"error":{"message":"slow down","x":"' + b"x" * 1_000_000 + b'"}}')

    def script(received: RecordedRequest) -> Script:
        return GOOD if received.json().get("max_tokens") == 7 else refusal

    async with FaultServer(script) as worker, relay(worker) as gate:
        for _ in range(10):
            answers = await asyncio.gather(*(ask(gate.port, post(CHAT, chat())) for _ in range(10)))
            assert [429] * 10 == [answer.status for answer in answers]
            assert all(error_object(answer.body) for answer in answers)
            assert all(len(answer.body) < 100_000 for answer in answers)
        answer = await ask(gate.port, post(CHAT, chat(max_tokens=7)))

        assert answer.body.endswith(frames.DONE)
        await gate.idle()
        await worker.until(lambda: worker.open_connections <= 10)
        assert [] == gate.blamed()


async def test_c42_an_error_body_that_never_ends_is_given_up(relay: Relay) -> None:
    """500, then a byte now and then: the client is answered within the limit and the connection closed."""
    head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain\r\ncontent-length: 100000\r\n\r\n"
    trickle = (step for _ in range(1000) for step in (Send(b"x"), Sleep(0.02)))
    async with (
        FaultServer((Send(head), *trickle)) as worker,
        relay(worker, policy=model_policy(error_body_s=0.2)) as gate,
    ):
        async with asyncio.timeout(10):
            answer = await ask(gate.port, post(CHAT, chat()))

        assert 500 == answer.status
        assert error_object(answer.body)
        await worker.requests[0].closed.wait()
        await gate.idle()
