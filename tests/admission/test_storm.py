"""Limits under a storm from four real gateway processes, measured where they count: at the worker."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from gateway.clock import SystemClock
from gateway.control.state_dir import held
from gateway.keys import KeysFile
from gateway.types import WorkerState
from tests.admission.metered import MeteredWorker
from tests.processes.fleet import MODEL, Fleet, configured, fleet, until
from tests.proxy.raw_client import RawConnection, post

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]

PROCESSES = 4
LIMIT = 32
CLIENTS = 128
BUSY = 0.6
"""The part of the permits that is in use on average at least. A machine that does other things is slow to hand on."""
CHAT = "/v1/chat/completions"
QUESTION = {"model": "sim", "messages": [{"role": "user", "content": "x"}]}


class Storm:
    """Closed-loop clients, each on one connection as long as that lasts; answers are counted by status and client."""

    def __init__(self, gateway: Fleet, headers: dict[str, str] | None = None) -> None:
        self.gateway = gateway
        self.over = False
        self.statuses: Counter[int] = Counter()
        self.served: Counter[int] = Counter()
        """By the client's own port."""
        self.broken = 0
        self._request = post(CHAT, QUESTION, headers or {})

    async def run(self, clients: int, *, pause_s: float = 0.0) -> None:
        """Until `over`."""
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client(pause_s))

    async def run_away(self, clients: int, dice: random.Random) -> None:
        """Until `over`: clients that ask once and leave, whether they have been answered or not."""

        async def client() -> None:
            while not self.over:
                _, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
                writer.write(self._request)
                await asyncio.sleep(dice.uniform(0, 0.2))
                writer.transport.abort()

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())

    async def _client(self, pause_s: float) -> None:
        while not self.over:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
            connection = RawConnection(reader, writer)
            port = writer.get_extra_info("sockname")[1]
            try:
                closing = False
                while not self.over and not closing:
                    connection.send(self._request)
                    answer = await connection.answer()
                    closing = answer.header("connection") == "close"
                    self.statuses[answer.status] += 1
                    self.served[port] += answer.status == 200
                    if answer.status != 200:
                        await asyncio.sleep(pause_s)
            except (asyncio.IncompleteReadError, ConnectionError):
                self.broken += 1
            finally:
                writer.transport.abort()


async def test_a_workers_limit_holds_and_is_used_and_every_process_gets_its_share(tmp_path: Path) -> None:
    """
    128 clients over four processes want a worker with 32 permits. It never has more than 35 (one too many for each
    other process), and 32 while there is demand; no client of any process starves. One process is killed: its permits
    are used by the others again. Then all are replaced, with requests in every line: all of those are served, and
    nobody but the clients of the killed process has noticed anything. In the end nothing is in flight.
    """
    dice = random.Random(1)
    async with (
        asyncio.timeout(100),
        MeteredWorker(lambda: dice.uniform(0.1, 0.3)) as worker,
        fleet(tmp_path, configured(PROCESSES, model={"max_in_flight": LIMIT}), servers=[worker]) as gateway,
    ):
        storm = Storm(gateway)
        running = asyncio.create_task(storm.run(CLIENTS))
        await until(lambda: worker.served > 2 * CLIENTS)
        owners = gateway.owners()
        worker.forget()
        before = Counter(storm.served)
        await until(lambda: worker.served > 6 * CLIENTS)
        mean, most = worker.mean, worker.most
        grants = {port: storm.served[port] - before[port] for port in owners}
        by_process = Counter(dict.fromkeys(gateway.pids, 0))
        for port, pid in owners.items():
            by_process[pid] += grants[port]
        clients = Counter(owners.values())

        os.kill(gateway.pids[0], signal.SIGKILL)
        killed_s = asyncio.get_running_loop().time()
        await gateway.all_serve(PROCESSES - 1)
        async with asyncio.timeout(30):
            await until(lambda: worker.running >= LIMIT)
        back_s = asyncio.get_running_loop().time() - killed_s
        worker.forget()
        await until(lambda: worker.served > 2 * CLIENTS)
        mean_after, most_after = worker.mean, worker.most
        await gateway.all_serve(PROCESSES)
        broken = storm.broken
        worker.forget()
        await gateway.replaced()
        await until(lambda: worker.served > CLIENTS)
        most_replaced = worker.most
        storm.over = True
        await running
        await until(lambda: gateway.total("gateway_requests_in_flight") == 0)

        print(
            f"at the worker: mean {mean:.1f}, most {most}; {back_s:.3f} s after the kill as many again, then ", end=""
        )
        print(
            f"mean {mean_after:.1f}, most {most_after}; clients {[*clients.values()]}, served {[*by_process.values()]}"
        )
        assert LIMIT <= most <= LIMIT + PROCESSES - 1
        assert most_after <= LIMIT + PROCESSES - 1
        assert mean > BUSY * LIMIT
        assert mean_after > BUSY * LIMIT
        assert PROCESSES == len(clients)
        per_client = [by_process[pid] / clients[pid] for pid in clients]
        assert min(per_client) > 0.5 * max(per_client)
        assert min(grants.values()) > 0
        assert {200} == set(storm.statuses)
        assert LIMIT <= most_replaced <= LIMIT + 2 * PROCESSES - 1
        assert broken == storm.broken
        assert 0 < broken < CLIENTS
        assert 0 == gateway.total("gateway_queue_depth")
        assert 0 == gateway.supervisor.report().in_flight


async def test_a_keys_limit_holds_over_all_processes(tmp_path: Path) -> None:
    """
    Twenty clients with one key that may have eight requests: never more than eleven at once, wherever their connections
    are; those beyond are told so, and eight are reached, although hardly a process has as many clients as that.
    """
    with held(tmp_path / "state") as directory:
        secret = KeysFile(directory.keys_file, SystemClock()).create("acme", max_in_flight=8).secret
    dice = random.Random(2)
    async with (
        asyncio.timeout(100),
        MeteredWorker(lambda: dice.uniform(0.05, 0.15)) as worker,
        fleet(tmp_path, configured(PROCESSES), servers=[worker]) as gateway,
    ):
        storm = Storm(gateway, {"authorization": f"Bearer {secret}"})
        running = asyncio.create_task(storm.run(20, pause_s=0.02))
        await until(lambda: worker.served > 300)
        most = worker.most
        storm.over = True
        await running
        await until(lambda: gateway.total("gateway_requests_in_flight") == 0)

        assert 8 <= most <= 8 + PROCESSES - 1
        assert {200, 429} == set(storm.statuses)
        assert storm.statuses[429] == gateway.total("gateway_rejections_total", "tenant_limit")


async def test_a_shaken_gateway_comes_to_rest_with_nothing_left_over(tmp_path: Path) -> None:
    """
    Two workers, two processes, sixty clients of which a third leave in line or while they are served. Meanwhile
    a process is killed, reloads move the limit up and down while requests wait, and workers are launched anew.
    Everybody who stays is served; a raised limit is used; in the end nothing is in flight and nobody waits.
    """
    dice = random.Random(3)
    async with (
        asyncio.timeout(100),
        MeteredWorker(lambda: dice.uniform(0.02, 0.08)) as first,
        MeteredWorker(lambda: dice.uniform(0.02, 0.08)) as second,
        fleet(tmp_path, configured(2, model={"max_in_flight": 3}), servers=[first, second]) as gateway,
    ):
        storm, passers_by = Storm(gateway), Storm(gateway)
        running = asyncio.create_task(storm.run(40))
        passing = asyncio.create_task(passers_by.run_away(20, dice))
        reshaping = gateway.supervisor.reshaping

        async def limited(limit: int) -> None:
            model = reshaping.settings.models[MODEL].model_copy(update={"max_in_flight": limit})
            await reshaping.use(reshaping.settings.model_copy(update={"models": {MODEL: model}}), reshaping.specs)

        async def served_by_both(count: int) -> None:
            for worker in (first, second):
                worker.forget()
            await until(lambda: min(first.served, second.served) >= count)

        for launch, limit in enumerate((12, 2)):
            await served_by_both(20)
            await limited(limit)
            if limit == 12:
                await until(lambda: first.running + second.running > 2 * 3 + 3)
            moved = gateway.workers.workers[f"{MODEL}-{launch % 2}"]
            moved.become(WorkerState.STARTING)
            await served_by_both(0)
            moved.become(WorkerState.READY, launch_id=f"again-{launch}")
            await served_by_both(20)
            if limit == 2:
                os.kill(dice.choice(gateway.pids), signal.SIGKILL)
        await gateway.all_serve(2)
        storm.over = passers_by.over = True
        await running
        await passing
        await until(lambda: gateway.total("gateway_requests_in_flight") == 0)
        await until(lambda: first.running + second.running == 0)

        assert {200} == set(storm.statuses)
        assert storm.broken <= 40
        assert 0 == gateway.total("gateway_queue_depth")
        assert 0 == gateway.total("gateway_worker_in_flight")
        assert 0 == gateway.supervisor.report().in_flight
        assert [0, 0] == [line.in_flight for line in gateway.supervisor.report().workers]


SOAK_S = 180


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_limits_hold_through_minutes_of_crashes_and_replacements(tmp_path: Path) -> None:
    """
    Every few seconds a process is killed or all are replaced: the worker never has more than the processes alive can
    grant too many, the permits are used all the time, and in the end nothing is in flight.
    """
    dice = random.Random(6)
    async with (
        MeteredWorker(lambda: dice.uniform(0.02, 0.2)) as worker,
        fleet(tmp_path, configured(PROCESSES, model={"max_in_flight": LIMIT}), servers=[worker]) as gateway,
    ):
        storm = Storm(gateway)
        running = asyncio.create_task(storm.run(CLIENTS))
        await until(lambda: worker.served > CLIENTS)
        worker.forget()
        end_s = asyncio.get_running_loop().time() + SOAK_S
        kills = replacements = 0
        while asyncio.get_running_loop().time() < end_s:
            if dice.random() < 0.6:
                os.kill(dice.choice(gateway.pids), signal.SIGKILL)
                kills += 1
            else:
                await gateway.replaced()
                replacements += 1
            await gateway.all_serve(PROCESSES)
            await asyncio.sleep(dice.uniform(0, 3))
        mean, most = worker.mean, worker.most
        storm.over = True
        await running
        await until(lambda: gateway.total("gateway_requests_in_flight") == 0)

        print(f"{kills} kills, {replacements} replacements, at the worker: mean {mean:.1f}, most {most}")
        assert LIMIT <= most <= LIMIT + 2 * PROCESSES - 1
        assert mean > 0.75 * LIMIT
        assert {200} == set(storm.statuses)
        assert 0 == gateway.supervisor.report().in_flight
