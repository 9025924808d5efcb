"""Further attempts: only before an event has gone out, only where trying again can help, never for a client's fault."""

from __future__ import annotations

import asyncio

import pytest

from gateway.proxy.policy import ModelPolicy
from gateway.proxy.upstream import UpstreamConnection
from gateway.types import Outcome, RetryReason, WorkerAddress, WorkerView
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Fin, Reset, Step
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, ask, chat, connect, post
from tests.proxy.served import full_backlog, model_policy, until, worker_view

pytestmark = pytest.mark.anyio

GOOD = scripts.chat_stream()
ENVELOPE = {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (scripts.resets_at_once(), RetryReason.CONNECTION_LOST),
        (scripts.closes_at_once(), RetryReason.CONNECTION_LOST),
        (scripts.ERRORS["bad-gateway-html"], RetryReason.STATUS_5XX),
        (scripts.ERRORS["busy"], RetryReason.STATUS_5XX),
        (scripts.ERRORS["draining"], RetryReason.DRAINING_ENGINE),
    ],
    ids=["reset", "close", "502", "503", "draining"],
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_a_failing_worker_costs_one_attempt(
    gateway: Gateway, script: tuple[Step, ...], reason: RetryReason, stream: bool
) -> None:
    """The next worker gets the same bytes; the client sees only its answer."""
    good = GOOD if stream else scripts.chat_json()
    async with (
        asyncio.timeout(10),
        FaultServer(script) as bad,
        FaultServer(good) as well,
        gateway(bad, well) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat(stream=stream)))
        record = await served.records.record()

        assert (200, True) == (answer.status, answer.complete)
        assert record.outcome is Outcome.OK
        assert (record.attempts, record.retries, record.worker) == (2, [reason], "w1")
        assert bad.requests[0].body == well.requests[0].body
        assert [(failure.worker, failure.kind) for failure in served.failures] == [("w0", reason)]
        await served.idle()


async def test_a_refused_connection_costs_one_attempt(gateway: Gateway) -> None:
    """Nothing was sent, so trying elsewhere is always safe."""
    async with (
        asyncio.timeout(10),
        FaultServer(refuse=True) as down,
        FaultServer(GOOD) as well,
        gateway(down, well) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.status == 200
        assert (await served.records.record()).retries == [RetryReason.CONNECT]


@pytest.mark.interpreted
async def test_a_connection_closed_before_its_request_costs_one_attempt(gateway: Gateway) -> None:
    """A worker that dies with connections in its queue resets them; nothing was sent, so it is as if refused."""

    def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    dying = await asyncio.start_server(close, "127.0.0.1", 0)
    host, port = dying.sockets[0].getsockname()
    view = worker_view(name="w0", address=WorkerAddress(host=host, port=port))
    async with (
        asyncio.timeout(10),
        dying,
        FaultServer(GOOD) as well,
        gateway(view, worker_view(well, "w1"), policy=model_policy(first_byte_s=8)) as served,
    ):
        connect_to = served.pools.connect

        async def connect_late(worker: WorkerView) -> UpstreamConnection:
            connection = await connect_to(worker)
            if worker.name == "w0":
                await until(lambda: connection.closed)
            return connection

        served.pools.connect = connect_late  # type: ignore[method-assign]
        answer = await ask(served.port, post(CHAT, chat()))
        record = await served.records.record()

        assert (200, True) == (answer.status, answer.complete)
        assert (record.outcome, record.retries) == (Outcome.OK, [RetryReason.CONNECT])
        await served.idle()


@pytest.mark.parametrize("last", ["busy", "closes"])
async def test_the_client_is_told_once_whether_to_try_again(gateway: Gateway, last: str) -> None:
    """What counts is the last worker's own hint, or ours if it gave none: never both, never an earlier worker's."""
    hinting = scripts.error(503, frames.BUSY, "Service Unavailable", headers=(("x-should-retry", "true"),))
    async with (
        asyncio.timeout(10),
        FaultServer(hinting) as first,
        FaultServer(hinting if last == "busy" else scripts.closes_at_once()) as second,
        gateway(first, second, policy=ModelPolicy(retries=1)) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert ["true" if last == "busy" else "false"] == answer.all("x-should-retry")
        assert len((await served.records.record()).retries) == 1


async def test_a_connection_that_takes_too_long_costs_one_attempt(gateway: Gateway) -> None:
    """The connect limit is its own; the request goes on elsewhere."""
    with full_backlog() as address:
        async with asyncio.timeout(15), FaultServer(GOOD) as well:
            slow = worker_view(name="w0", address=address)
            async with gateway(slow, worker_view(well, "w1"), policy=model_policy(connect_s=0.2)) as served:
                answer = await ask(served.port, post(CHAT, chat()))

                assert answer.status == 200
                assert (await served.records.record()).retries == [RetryReason.CONNECT]
                await served.idle()


@pytest.mark.parametrize("name", ["unknown-model", "bad-request", "context-length", "rate-limited", "not-found"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_a_clients_fault_is_final(gateway: Gateway, name: str, stream: bool) -> None:
    """4xx is relayed in the envelope, streamed or not, tried once, and held against nobody."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.ERRORS[name]) as worker,
        FaultServer(GOOD) as other,
        gateway(worker, other) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat(stream=stream)))
        record = await served.records.record()

        assert 400 <= answer.status < 500
        assert answer.header("content-type") == "application/json"
        assert set(answer.json()["error"]) == ENVELOPE
        assert record.outcome is Outcome.CLIENT_ERROR
        assert len(worker.requests) + len(other.requests) == 1
        assert served.failures == []
        if name == "context-length":
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        if name == "rate-limited":
            assert answer.header("retry-after") == "7"
        await served.idle()


async def test_a_workers_401_is_ours(gateway: Gateway) -> None:
    """The client's key is not to blame for the gateway's."""
    async with asyncio.timeout(10), FaultServer(scripts.ERRORS["unauthorized"]) as worker, gateway(worker) as served:
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.status == 502
        assert (await served.records.record()).outcome is Outcome.UPSTREAM_ERROR


async def test_the_number_of_attempts_is_bounded(gateway: Gateway) -> None:
    """With every worker failing, the client hears of it after `retries` + 1 attempts."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.ERRORS["busy"]) as a,
        FaultServer(scripts.ERRORS["busy"]) as b,
        FaultServer(scripts.ERRORS["busy"]) as c,
        gateway(a, b, c, policy=ModelPolicy(retries=1)) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))
        record = await served.records.record()

        assert answer.status == 503
        assert record.attempts == 2
        assert len(a.requests) + len(b.requests) + len(c.requests) == 2


async def test_a_request_at_two_deaths_is_not_tried_again(gateway: Gateway) -> None:
    """It may be what kills the workers."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.resets_at_once()) as a,
        FaultServer(scripts.resets_at_once()) as b,
        FaultServer(GOOD) as c,
        gateway(a, b, c, policy=ModelPolicy(retries=5)) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.status == 502
        assert c.requests == []


@pytest.mark.parametrize("end", [Fin(), Reset()], ids=["fin", "rst"])
async def test_a_stale_connection_is_replaced(gateway: Gateway, end: Step) -> None:
    """The keep-alive race: a reused connection that closes without a byte costs nothing and blames nobody."""
    async with (
        asyncio.timeout(10),
        FaultServer(GOOD, (end,), GOOD) as worker,
        gateway(worker) as served,
        connect(served.port) as client,
    ):
        for _ in range(2):
            client.send(post(CHAT, chat()))
            answer = await client.answer()
            assert answer.status == 200
            assert answer.body.endswith(frames.DONE)
        record = await served.records.record(1)

        assert record.retries == [RetryReason.STALE_CONNECTION]
        assert len(worker.requests) == 3
        assert len(worker.connections) == 2
        assert served.failures == []


async def test_an_idle_connection_that_the_worker_closes_is_forgotten(gateway: Gateway) -> None:
    """A connection that was closed while idle is never used again."""
    async with asyncio.timeout(10), FaultServer(GOOD, close_after=1) as worker, gateway(worker) as served:
        for _ in range(5):
            assert (await ask(served.port, post(CHAT, chat()))).status == 200
            await served.idle()

        assert len(worker.requests) == 5
        assert all(record.outcome is Outcome.OK for record in served.records.finished_records)


async def test_idle_connections_are_dropped_in_time(gateway: Gateway) -> None:
    """Before the worker would close them, the gateway does."""
    async with asyncio.timeout(10), FaultServer(GOOD) as worker, gateway(worker, idle_expiry_s=0.1) as served:
        await ask(served.port, post(CHAT, chat()))
        await worker.idle()

        assert sum(count.idle for count in served.pools.counts()) == 0


async def test_a_replaced_worker_gets_no_old_connection(gateway: Gateway) -> None:
    """Another launch behind the same address is another worker."""
    async with asyncio.timeout(10), FaultServer(GOOD) as worker, gateway(worker) as served:
        await ask(served.port, post(CHAT, chat()))
        again = worker_view(worker, launch_id="another")
        served.publish([again])
        served.pools.retain([again])
        await worker.connections[0].closed.wait()
        await ask(served.port, post(CHAT, chat()))

        assert len(worker.connections) == 2


async def test_a_stale_connection_of_a_large_body_sends_all_of_it_again(gateway: Gateway) -> None:
    """The whole request is replayed, however far the first sending came."""
    body = post(CHAT, chat(padding="x" * 300_000))
    async with (
        asyncio.timeout(10),
        FaultServer(GOOD, (Reset(),), GOOD, respond_on="head") as worker,
        gateway(worker) as served,
    ):
        await ask(served.port, post(CHAT, chat()))
        answer = await ask(served.port, body)
        whole = await worker.request(2)

        assert answer.status == 200
        assert b"x" * 300_000 in whole.body


async def test_no_worker_is_503_with_a_pause(gateway: Gateway) -> None:
    """Nobody can serve and nobody is on the way."""
    async with asyncio.timeout(10), gateway() as served:
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.status == 503
        assert int(answer.header("retry-after") or "0") > 0
        assert (await served.records.record()).outcome is Outcome.NO_WORKER


async def test_a_trickling_error_body_ends(gateway: Gateway) -> None:
    """A worker that promises an error body and does not deliver it holds nobody for long."""
    head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain\r\ncontent-length: 1000\r\n\r\nab"
    async with (
        asyncio.timeout(30),
        FaultServer((*scripts.raw(head), *scripts.never_answers())) as worker,
        gateway(worker, policy=model_policy(error_body_s=0.2)) as served,
    ):
        answer = await ask(served.port, post(CHAT, chat()))

        assert answer.status == 500
        await served.idle()
