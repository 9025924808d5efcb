"""Gateway processes replaced under load, by clients without retries that keep their connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.processes.clients import Load
from tests.processes.fleet import configured, fleet

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]

CLIENTS = 16


async def replaced_under_load(folder: Path, *, processes: int, times: int) -> None:
    """So many replacements, one after the other, while clients ask."""
    async with asyncio.timeout(60 + 10 * times), fleet(folder, configured(processes)) as gateway:
        load = Load(gateway.port)
        seen = {*gateway.pids}
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            for _ in range(times):
                await gateway.replaced()
                assert seen.isdisjoint(gateway.pids)
                seen |= {*gateway.pids}
            load.over.set()
        ok = gateway.total("gateway_requests_total", "ok")
        commands = [[*worker.commands] for worker in gateway.workers.workers.values()]

    assert [] == load.refused
    assert [] == load.failed
    assert len(load.asked) > 10 * CLIENTS
    assert len(load.asked) == ok
    assert (times + 1) * processes == len(seen)
    assert [[], []] == commands


async def test_five_replacements_cost_nobody_a_request(tmp_path: Path) -> None:
    """No connection is refused, no request fails, and every one is counted once, by whichever process served it."""
    await replaced_under_load(tmp_path, processes=2, times=5)


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_fifty_replacements_cost_nobody_a_request(tmp_path: Path) -> None:
    """The same fifty times with four processes."""
    await replaced_under_load(tmp_path, processes=4, times=50)
