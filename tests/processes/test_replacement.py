"""Gateway processes replaced under load, by clients without retries that keep their connections."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import gateway
from gateway.control.gateway_process import ProcessState
from tests.processes.clients import Asked, Load, long_stream
from tests.processes.fleet import configured, fleet, until

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]

CLIENTS = 16


async def replaced_under_load(folder: Path, *, processes: int, times: int) -> None:
    """So many replacements, one after the other, while clients ask."""
    async with asyncio.timeout(60 + 10 * times), fleet(folder, configured(processes)) as running:
        load = Load(running.port)
        seen = {*running.pids}
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            for _ in range(times):
                await running.replaced()
                assert seen.isdisjoint(running.pids)
                seen |= {*running.pids}
            load.over.set()
        # The last client may have its whole answer a moment before it is counted.
        await until(lambda: running.total("gateway_requests_in_flight") == 0)
        ok = running.total("gateway_requests_total", "ok")
        commands = [[*worker.commands] for worker in running.workers.workers.values()]

    assert [] == load.refused
    assert [] == load.failed
    assert len(load.asked) > 10 * CLIENTS
    assert len(load.asked) == ok
    assert (times + 1) * processes == len(seen)
    assert [[], []] == commands


async def test_five_replacements_cost_nobody_a_request(tmp_path: Path) -> None:
    """No connection is refused, no request fails, and every one is counted once, by whichever process served it."""
    await replaced_under_load(tmp_path, processes=2, times=5)


async def test_new_code_takes_over_under_load(tmp_path: Path) -> None:
    """
    The installed release changes while it serves: after `gateway reload --processes` every process is of the new one,
    no request has failed, a stream that began under the old one is whole although it takes longer than the time for a
    stop, and no worker has been told anything. A release that does not even start is refused, and those that serve go
    on.
    """
    code = tmp_path / "installed"
    shutil.copytree(Path(gateway.__file__).parent, code / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    async with asyncio.timeout(90), fleet(tmp_path, configured(2, drain_timeout_s=0.2), code=code) as running:
        load, long = Load(running.port), Asked()
        old = {line.release for line in running.lines}
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            group.create_task(long_stream(running.port, long, 300))
            await until(lambda: long.tokens > 0)
            (code / "gateway" / "__init__.py").write_text('"""The next release."""\n\n__version__ = "99.0"\n')
            await running.replaced()
            new = {line.release for line in running.lines if line.state is ProcessState.SERVING}
            pids = running.pids
            (code / "gateway" / "app.py").write_text("this is no release")
            refused = await running.replacement()
            kept = running.pids
            load.over.set()
        told = [command for worker in running.workers.workers.values() for command in worker.commands]

    assert ({gateway.__version__}, {"99.0"}) == (old, new)
    assert (True, pids) == (refused.failed, kept)
    assert "exit code 1" in refused.lines[-1]
    assert [] == load.refused
    assert [] == load.failed
    assert (True, 300) == (long.whole, long.tokens)
    assert [] == told


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_fifty_replacements_cost_nobody_a_request(tmp_path: Path) -> None:
    """The same fifty times with four processes."""
    await replaced_under_load(tmp_path, processes=4, times=50)
