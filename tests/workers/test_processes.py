"""Real process trees under a worker's task: whatever happens to them, nothing is left and the worker comes back."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest

from gateway.clock import SystemClock
from gateway.config.settings import Launch, Watch
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.actor import WorkerActor, WorkerCommand
from gateway.workers.adoption import Adoption
from gateway.workers.command_line import CommandLine
from gateway.workers.launch import TERM_DEADLINE_S
from gateway.workers.ports import LoopbackPorts
from gateway.workers.probe import HttpProber
from gateway.workers.process import SessionLauncher, session_members
from gateway.workers.services import Prober, WorkerServices
from gateway.workers.spec import WorkerSpec
from gateway.workers.status import WorkerStatus

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

FAKE = Path(__file__).with_name("fake_worker.py")
READY, STOPPED, BACKOFF, FAILED = WorkerState.READY, WorkerState.STOPPED, WorkerState.BACKOFF, WorkerState.FAILED


class Told:
    """What the worker's task told, and a way to wait for it. `sessions`: every pid that ever led one."""

    def __init__(self) -> None:
        self.statuses: list[WorkerStatus] = []
        self.sessions: set[int] = set()
        self._more = anyio.Event()

    def __call__(self, status: WorkerStatus) -> None:
        self.statuses.append(status)
        if status.pid is not None:
            self.sessions.add(status.pid)
        self._more.set()
        self._more = anyio.Event()

    async def more(self) -> None:
        """Until the next word."""
        await self._more.wait()

    async def until(self, wanted: Callable[[WorkerStatus], bool]) -> WorkerStatus:
        """The first status from now on that is wanted."""
        with anyio.fail_after(30):
            seen = max(0, len(self.statuses) - 1)
            while True:
                for status in self.statuses[seen:]:
                    if wanted(status):
                        return status
                seen = len(self.statuses)
                await self._more.wait()


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    folder = Path(f"/tmp/gw-{os.getpid()}-{tmp_path.name[-12:]}")
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def spec(tmp_path: Path, *extra: str, watch: Watch | None = None, runtime_dir: Path | None = None) -> WorkerSpec:
    transport = "uds" if runtime_dir else "tcp"
    return WorkerSpec(
        name="fake-0",
        model="fake",
        source="/models/fake",
        watch=watch or Watch(probe_interval_s=0.2, backoff_initial_s=0.1),
        drain_timeout_s=0,
        engine_python=Path(sys.executable),
        engine_command=("{python}", "-I", str(FAKE)),
        launch=Launch(extra_args=list(extra), transport=transport),
        log_dir=tmp_path / "logs",
        runtime_dir=runtime_dir or tmp_path,
        api_key="worker-secret",
    )


def services(
    ports: LoopbackPorts | None = None, sleep: Callable[[float], Awaitable[None]] = anyio.sleep
) -> WorkerServices:
    clock = SystemClock()

    def prober(address: WorkerAddress, api_key: str | None, model: str) -> Prober:
        return HttpProber(address, api_key, model, timeout_s=5)

    ids = iter(range(1000))
    return WorkerServices(
        launcher=SessionLauncher(clock),
        prober=prober,
        ports=ports or LoopbackPorts(),
        environ=dict(os.environ),
        new_launch_id=lambda: f"launch-{next(ids)}",
        clock=clock,
        sleep=sleep,
    )


@asynccontextmanager
async def owned(
    worker: WorkerSpec, around: WorkerServices | None = None, adopted: Adoption | None = None
) -> AsyncIterator[tuple[WorkerActor, Told]]:
    """A worker's task; afterwards no process of any of its sessions may live, nor a zombie of ours."""
    told = Told()
    actor = WorkerActor(worker, around or services(), told, adopted)
    async with anyio.create_task_group() as group:
        group.start_soon(actor.run)
        yield actor, told
        group.cancel_scope.cancel()
    assert () == tuple(pid for session in told.sessions for pid in session_members(session))
    assert [] == [child.pid for child in psutil.Process().children() if child.pid in told.sessions]


async def test_a_killed_api_server_leaves_no_orphan_and_comes_back(tmp_path: Path) -> None:
    """kill -9 of the API server: its engine is killed, and a new launch is READY without anybody's help."""
    async with owned(spec(tmp_path)) as (actor, told):
        first = await told.until(lambda status: status.state is READY)
        assert first.pid is not None
        tree = session_members(first.pid)
        assert 2 == len(tree)
        os.kill(first.pid, signal.SIGKILL)
        fallen = await told.until(lambda status: status.state is BACKOFF)
        assert "signal 9" in fallen.last_failure
        assert not [pid for pid in tree if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        again = await told.until(lambda status: status.state is READY)
        assert again.launch_id != first.launch_id
        assert (1, "0.0-fake", 1024) == (again.restarts, again.engine_version, again.max_model_len)
    assert STOPPED is actor.status.state


async def test_an_exit_with_status_zero_is_a_crash(tmp_path: Path) -> None:
    """The engine beneath is swept, and the worker is given up only after its row of failures."""
    watch = Watch(probe_interval_s=0.05, backoff_initial_s=0.05, max_fast_failures=2)
    async with owned(spec(tmp_path, "--fake-die-after", "2", watch=watch)) as (_, told):
        await told.until(lambda status: status.state is READY)
        failed = await told.until(lambda status: status.state is FAILED)
        assert "exit status 0" in failed.last_failure
        assert 2 == len(told.sessions)


async def test_a_worker_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """SIGTERM, the deadline (here made short), SIGKILL to the group."""

    async def hurried(seconds: float) -> None:
        await anyio.sleep(seconds / 50)

    async with owned(spec(tmp_path, "--fake-ignore-term"), services(sleep=hurried)) as (actor, told):
        ready = await told.until(lambda status: status.state is READY)
        actor.command(WorkerCommand.STOP)
        await told.until(lambda status: status.state is STOPPED)
        assert ready.pid is not None
        assert () == session_members(ready.pid)


async def test_a_clean_stop_asks_first(tmp_path: Path) -> None:
    """A worker that obeys SIGTERM is not waited for until the deadline; SHUTDOWN ends the task."""
    told = Told()
    actor = WorkerActor(spec(tmp_path), services(), told)
    with anyio.fail_after(TERM_DEADLINE_S - 1):
        async with anyio.create_task_group() as group:
            group.start_soon(actor.run)
            ready = await told.until(lambda status: status.state is READY)
            actor.command(WorkerCommand.SHUTDOWN)
    assert STOPPED is actor.status.state
    assert ready.pid is not None
    assert () == session_members(ready.pid)


async def test_a_starting_worker_is_killed_at_once(tmp_path: Path) -> None:
    """It would swallow SIGTERM."""
    async with owned(spec(tmp_path, "--fake-never-ready", "--fake-ignore-term")) as (actor, told):
        starting = await told.until(lambda status: status.phase == "starting the engine")
        actor.command(WorkerCommand.STOP)
        with anyio.fail_after(TERM_DEADLINE_S - 1):
            await told.until(lambda status: status.state is STOPPED)
        assert starting.pid is not None
        assert () == session_members(starting.pid)


@pytest.mark.parametrize("moment", range(1, 9))
async def test_whenever_the_owner_ends_nothing_is_left(tmp_path: Path, moment: int) -> None:
    """Cancelled at its first, second ... eighth word: launching, starting, ready, fallen, starting again."""
    async with owned(spec(tmp_path)) as (_, told):
        with anyio.fail_after(30):
            while len(told.statuses) < moment:
                if told.statuses and told.statuses[-1].state is READY:
                    os.kill(told.statuses[-1].pid or 0, signal.SIGKILL)
                await told.more()


def traces(tmp_path: Path) -> dict[str, object]:
    """What a worker could leave behind, in the folders it may write to and in the kernel."""
    us = psutil.Process()
    return {
        "files": sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")),
        "descriptors": us.num_fds(),
        "children": len(us.children(recursive=True)),
        "segments": sorted(name for name in os.listdir("/dev/shm") if name.startswith("psm_fake")),
        "listening": sorted(each.laddr.port for each in us.net_connections("tcp") if each.status == psutil.CONN_LISTEN),
    }


async def live_and_die(tmp_path: Path, lives: int) -> None:
    """Start and stop; every second life ends by kill -9 of the API server. Nothing more than after the first pair."""
    folders = {name: tmp_path / name for name in ("logs", "cache", "tmp", "run")}
    for folder in folders.values():
        folder.mkdir()
    worker = replace(spec(tmp_path, "--fake-litter", runtime_dir=None), runtime_dir=folders["run"])
    around = replace(services(), environ={**os.environ, "TMPDIR": str(folders["tmp"]), "HOME": str(folders["cache"])})
    async with owned(worker, around) as (actor, told):
        before: dict[str, object] = {}
        for life in range(lives):
            ready = await told.until(lambda status: status.state is READY)
            if life % 2:
                assert ready.pid is not None
                os.kill(ready.pid, signal.SIGKILL)
                await told.until(lambda status: status.state is BACKOFF)
            actor.command(WorkerCommand.STOP)
            await told.until(lambda status: status.state is STOPPED)
            if life == 1:
                before = traces(tmp_path)
                assert [] == os.listdir(folders["run"]) == os.listdir(folders["tmp"]) == os.listdir(folders["cache"])
            actor.command(WorkerCommand.START)
        actor.command(WorkerCommand.STOP)
        await told.until(lambda status: status.state is STOPPED)
        assert before == traces(tmp_path)
        assert {"fake-0.log", "fake-0.previous.log"} == set(os.listdir(folders["logs"]))
        assert lives <= len(told.sessions)


async def test_lives_leave_nothing_behind(tmp_path: Path) -> None:
    """No process, descriptor, port, segment or file more than before; the worker litters wherever vLLM does."""
    await live_and_die(tmp_path, 6)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_fifty_lives_leave_nothing_behind(tmp_path: Path) -> None:
    """The same, over and over."""
    await live_and_die(tmp_path, 50)


async def test_a_taken_port_is_told_and_another_one_is_used(tmp_path: Path) -> None:
    """Somebody bound the port between our look and the worker's bind."""
    with socket.create_server(("127.0.0.1", 0)) as foreign:

        class Snatched(LoopbackPorts):
            first = True

            def reserve(self) -> int:
                if self.first:
                    self.first = False
                    return int(foreign.getsockname()[1])
                return super().reserve()

        async with owned(spec(tmp_path), services(Snatched())) as (_, told):
            fallen = await told.until(lambda status: status.state is BACKOFF)
            assert "port chosen for the worker was taken" in fallen.last_failure
            ready = await told.until(lambda status: status.state is READY)
            assert (("port_in_use", 1),) == ready.restart_reasons


async def test_a_unix_socket_serves_as_well(tmp_path: Path, short: Path) -> None:
    """Identity is checked on it too, and it is gone afterwards."""
    async with owned(spec(tmp_path, runtime_dir=short)) as (_, told):
        ready = await told.until(lambda status: status.state is READY)
        assert ready.address is not None
        assert str(short / "launch-0.sock") == ready.address.uds
    assert [] == os.listdir(short)


@pytest.mark.parametrize("python", ["/nowhere/python", "/etc/passwd"])
async def test_an_interpreter_that_cannot_run_is_refused_in_words(tmp_path: Path, python: str) -> None:
    """FAILED at once, with the key."""
    async with owned(replace(spec(tmp_path), engine_python=Path(python))) as (_, told):
        failed = await told.until(lambda status: status.state is FAILED)
        assert "engines.NAME.python" in failed.last_failure


async def test_a_failed_start_says_why(tmp_path: Path) -> None:
    """Status 2 and the last error of the output."""
    watch = Watch(backoff_initial_s=0.05, max_fast_failures=1)
    async with owned(spec(tmp_path, "--swap-space", watch=watch)) as (_, told):
        failed = await told.until(lambda status: status.state is FAILED)
        assert "does not know the option --swap-space" in failed.last_failure


async def test_the_owner_of_a_listening_socket_is_told(tmp_path: Path) -> None:
    """Ours, somebody else's, nobody's."""
    async with owned(spec(tmp_path)) as (actor, told):
        ready = await told.until(lambda status: status.state is READY)
        assert ready.pid is not None
        assert ready.address is not None
        process = actor._launch._process  # type: ignore[union-attr]
        assert process is not None
        assert process.listens_on(ready.address) is True
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            assert process.listens_on(WorkerAddress(host="127.0.0.1", port=foreign.getsockname()[1])) is False
        assert process.listens_on(WorkerAddress(uds="/run/other.sock")) is False


async def test_a_group_that_moved_away_is_swept_too(tmp_path: Path) -> None:
    """A member may make a process group of its own; the session still knows it."""
    script = (
        "import os, signal, sys\n"
        "if os.fork() == 0:\n    os.setpgid(0, 0)\n    signal.pause()\n"
        "print('up', flush=True)\nsignal.pause()\n"
    )
    log = tmp_path / "log"
    process = await SessionLauncher(SystemClock()).launch(CommandLine((sys.executable, "-I", "-c", script), {}), log)
    with anyio.fail_after(30):
        while len(session_members(process.pid)) < 2 or b"up" not in log.read_bytes():
            await anyio.lowlevel.checkpoint()
        process.kill_group()
        assert -9 == await process.wait()
        assert () == await process.sweep(5)
        assert () == await process.sweep(5)
        process.kill_group()
        process.terminate()
    assert -9 == process.returncode


def test_reserved_ports_are_free_and_different() -> None:
    """None is given twice while it is held."""
    ports = LoopbackPorts()
    given = [ports.reserve() for _ in range(50)]
    assert 50 == len(set(given))
    for port in given:
        with socket.create_server(("127.0.0.1", port)):
            pass
        ports.release(port)
