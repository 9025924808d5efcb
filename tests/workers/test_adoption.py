"""Real workers of a supervisor that is gone: recognised, watched, killed as a whole, and never mistaken for others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from gateway.clock import SystemClock
from gateway.errors import WorkerStartError
from gateway.types import WorkerAddress
from gateway.workers.actor import WorkerCommand
from gateway.workers.adoption import AdoptedProcess, Adoption
from gateway.workers.platform import start_ticks
from gateway.workers.ports import LoopbackPorts
from gateway.workers.process import session_members
from gateway.workers.services import EXIT_UNKNOWN
from tests.workers.test_processes import BACKOFF, FAKE, READY, STOPPED, owned, spec

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

PARENT = """
import json, subprocess, sys
argv, environ, log = json.loads(sys.argv[1])
none = subprocess.DEVNULL
with open(log, "ab") as file:
    child = subprocess.Popen(argv, env=environ, stdin=none, stdout=file, stderr=file, start_new_session=True)
print(child.pid)
"""


@contextmanager
def orphan(tmp_path: Path, port: int, name: str = "fake") -> Iterator[int]:
    """A worker whose parent has ended; killed at the end, whatever the test did."""
    (tmp_path / "logs").mkdir(exist_ok=True)
    argv = [sys.executable, "-I", str(FAKE), "--model", "/models/fake", "--served-model-name", name]
    argv += ["--host", "127.0.0.1", "--port", str(port)]
    environ = {**os.environ, "VLLM_API_KEY": "worker-secret"}
    told = json.dumps([argv, environ, str(tmp_path / "logs" / "fake-0.log")])
    pid = int(subprocess.run([sys.executable, "-I", "-c", PARENT, told], capture_output=True, check=True).stdout)
    try:
        yield pid
    finally:
        for member in session_members(pid):
            os.kill(member, signal.SIGKILL)


@pytest.fixture
def port() -> int:
    return LoopbackPorts().reserve()


def child_that_waits() -> subprocess.Popen[bytes]:
    """Ends when its standard input does."""
    return subprocess.Popen([sys.executable, "-I", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def adopted(pid: int, port: int) -> Adoption:
    process = AdoptedProcess(pid, start_ticks(pid) or 0, SystemClock())
    return Adoption(launch_id="old", address=WorkerAddress(host="127.0.0.1", port=port), process=process)


async def test_a_worker_of_a_dead_supervisor_goes_on_serving(tmp_path: Path, port: int) -> None:
    """The same process, READY again, without a launch; stopped like any other, with everything below it."""
    with orphan(tmp_path, port) as pid:
        async with owned(spec(tmp_path), adopted=adopted(pid, port)) as (actor, told):
            ready = await told.until(lambda status: status.state is READY)
            assert (pid, "old", port) == (ready.pid, ready.launch_id, ready.address and ready.address.port)
            actor.command(WorkerCommand.STOP)
            await told.until(lambda status: status.state is STOPPED)
            assert () == session_members(pid)
            assert {pid} == told.sessions


async def test_its_death_is_seen_and_its_engine_killed(tmp_path: Path, port: int) -> None:
    """kill -9 of an API server that is not our child: its engine goes too, and a launch of ours takes its place."""
    with orphan(tmp_path, port) as pid:
        async with owned(spec(tmp_path), adopted=adopted(pid, port)) as (_, told):
            await told.until(lambda status: status.state is READY)
            tree = session_members(pid)
            assert 2 == len(tree)
            os.kill(pid, signal.SIGKILL)
            fallen = await told.until(lambda status: status.state is BACKOFF)
            assert "exit status unknown" in fallen.last_failure
            assert () == session_members(pid)
            again = await told.until(lambda status: status.state is READY)
            assert again.pid != pid


async def test_a_worker_of_another_name_is_replaced(tmp_path: Path, port: int) -> None:
    """It serves something else than the configuration says: killed, told."""
    with orphan(tmp_path, port, name="other") as pid:
        async with owned(spec(tmp_path), adopted=adopted(pid, port)) as (_, told):
            gone = await told.until(lambda status: status.pid is None and status.last_failure != "")
            assert "serves other instead of fake" in gone.last_failure
            assert () == session_members(pid)


async def test_a_process_that_is_gone_or_another_is_not_taken() -> None:
    """Start ticks tell one process of a pid from the next."""
    child = child_that_waits()
    ticks = start_ticks(child.pid)
    assert ticks is not None
    with pytest.raises(WorkerStartError, match="not the worker that was recorded"):
        AdoptedProcess(child.pid, ticks + 1, SystemClock())
    with closing(AdoptedProcess(child.pid, ticks, SystemClock())) as process:
        assert None is process.returncode
        assert child.stdin is not None
        child.stdin.close()
        with anyio.fail_after(30):
            assert EXIT_UNKNOWN == await process.wait()
        child.wait()
        process.terminate()
        process.kill_group()
        assert () == await process.sweep(1)
        assert EXIT_UNKNOWN == process.returncode
    with pytest.raises(WorkerStartError):
        AdoptedProcess(child.pid, ticks, SystemClock())


async def test_adopting_leaks_no_descriptor(tmp_path: Path, port: int) -> None:
    """The pidfd is given back after the sweep, and also when the adoption is refused."""
    before = psutil.Process().num_fds()
    with orphan(tmp_path, port) as pid:
        with pytest.raises(WorkerStartError):
            AdoptedProcess(pid, 1, SystemClock())
        process = AdoptedProcess(pid, start_ticks(pid) or 0, SystemClock())
        process.kill_group()
        with anyio.fail_after(30):
            await process.wait()
            assert () == await process.sweep(5)
    assert before == psutil.Process().num_fds()
