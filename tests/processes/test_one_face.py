"""What clients and operators see does not depend on how many gateway processes there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.clock import SystemClock
from gateway.keys import KeysFile
from gateway.types import WorkerAddress, WorkerState
from loadtest.servers.simulation.options import SimulatorOptions
from tests.e2e.served import free_port
from tests.processes.fleet import Fleet, configured, fleet, one_to_each, until
from tests.proxy.raw_client import CHAT, Answer, RawConnection, chat, connect, post, request

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]

N = 4


async def asked(connections: dict[int, RawConnection], data: bytes) -> dict[int, Answer]:
    """The same request to every process, by pid."""
    answers = {}
    for pid, connection in connections.items():
        connection.send(data)
        answers[pid] = await connection.answer()
    return answers


async def until_all(connections: dict[int, RawConnection], data: bytes, status: int) -> None:
    """Until every process answers so; the test's deadline limits it."""
    while any(answer.status != status for answer in (await asked(connections, data)).values()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_every_process_has_the_same_face(tmp_path: Path) -> None:
    """
    Models, health and readiness are the same from each of them; a worker's death and a new API key reach all of them;
    each of them tells the supervisor what it saw fail, and has a circuit breaker of its own.
    """
    async with asyncio.timeout(90), fleet(tmp_path, configured(N)) as gateway, one_to_each(gateway) as each:
        for path in ("/v1/models", "/health", "/ready"):
            answers = await asked(each, request("GET", path))
            assert {200} == {answer.status for answer in answers.values()}
            assert 1 == len({answer.body for answer in answers.values()}), path

        await passive_failures_come_from_every_process(gateway, each)
        for worker in gateway.workers.workers.values():
            worker.become(WorkerState.STOPPED)
        await until_all(each, request("GET", "/ready"), 503)
        for worker in gateway.workers.workers.values():
            worker.become(WorkerState.READY)
        await until_all(each, request("GET", "/ready"), 200)

        KeysFile(tmp_path / "state" / "keys.json", SystemClock()).create("new")
        await until_all(each, request("GET", "/v1/models"), 401)


async def passive_failures_come_from_every_process(gateway: Fleet, each: dict[int, RawConnection]) -> None:
    """Behind the workers' addresses nobody listens: each process finds out by itself, and says so."""
    before: dict[str, Any] = {}
    for name, worker in gateway.workers.workers.items():
        before[name] = worker.status
        launched = replace(worker.status, launch_id=f"deaf-{name}")
        worker.status = launched
        worker.become(WorkerState.READY, address=WorkerAddress(host="127.0.0.1", port=free_port()))
    await until_all(each, post(CHAT, chat()), 502)
    reports = Counter(kind for worker in gateway.workers.workers.values() for kind, _, _ in worker.failures)
    await until(lambda: sum(len(worker.failures) for worker in gateway.workers.workers.values()) >= N)
    assert {"connect"} >= reports.keys()
    for name, worker in gateway.workers.workers.items():
        worker.status = before[name]
        worker.become(WorkerState.READY, launch_id=f"again-{name}")
    await until_all(each, post(CHAT, chat(stream=False, max_tokens=1)), 200)


async def test_an_operator_sees_how_many_requests_wait(tmp_path: Path) -> None:
    """Those of all processes together, for their model alone; none any more when they have got their turn."""
    slow = SimulatorOptions(itl_ms=200, itl_ms_per_seq=0, prefill_ms_per_token=0)
    settings = configured(2, model={"max_in_flight": 1})

    def waiting() -> int:
        (model,) = gateway.supervisor.report().models
        return model.waiting

    async with (
        asyncio.timeout(60),
        fleet(tmp_path, settings, workers=1, simulator=slow) as gateway,
        one_to_each(gateway) as each,
        connect(gateway.port) as busy,
    ):
        busy.send(post(CHAT, chat(stream=True, max_tokens=1000)))
        await busy.head()
        before = waiting()
        for connection in each.values():
            connection.send(post(CHAT, chat(stream=False, max_tokens=1)))
        await until(lambda: waiting() == len(each))
        busy.writer.transport.abort()
        answers = [await connection.answer() for connection in each.values()]
        await until(lambda: waiting() == 0)

    assert 0 == before
    assert [200, 200] == [answer.status for answer in answers]


async def test_connections_are_spread_over_the_processes(tmp_path: Path) -> None:
    """400 connections over four sockets: none has more than 1.6 times its share (7 standard deviations)."""
    async with asyncio.timeout(60), fleet(tmp_path, configured(N)) as gateway:
        counts = await spread(gateway, 400)

    assert N == len(counts)
    assert max(counts.values()) <= 1.6 * 400 / N


@pytest.mark.soak
async def test_connections_are_spread_evenly_time_and_again(tmp_path: Path) -> None:
    """20 runs: the fullest process has at most 1.3 times its share, 1.5 in the worst of them."""
    worst = []
    async with asyncio.timeout(120), fleet(tmp_path, configured(N)) as gateway:
        for _ in range(20):
            counts = await spread(gateway, 400)
            worst.append(max(counts.values()) / (400 / N))
    print("max/mean:", " ".join(f"{one:.2f}" for one in worst))

    assert sorted(worst)[18] <= 1.3
    assert max(worst) <= 1.5


async def spread(gateway: Fleet, connections: int) -> Counter[int]:
    """How many of so many new connections each process accepts."""
    async with asyncio.TaskGroup() as group:
        held = asyncio.Event()
        ports: set[int] = set()

        async def hold() -> None:
            async with connect(gateway.port) as connection:
                ports.add(connection.writer.get_extra_info("sockname")[1])
                await held.wait()

        for _ in range(connections):
            group.create_task(hold())
        await until(lambda: len(ports) == connections and ports <= gateway.owners().keys())
        owners = gateway.owners()
        held.set()
    return Counter(owners[port] for port in ports)
