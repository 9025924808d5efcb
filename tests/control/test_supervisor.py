"""The supervisor with fake workers and a fake gateway process: what it tells whom, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest

from gateway.clock import SystemClock
from gateway.config.settings import Settings
from gateway.control.gateway_process import GatewayProcessBroken
from gateway.control.state_dir import held
from gateway.control.supervisor import Supervisor
from gateway.control.supervisor_plan import SupervisorPlan
from gateway.errors import ConfigurationError, GatewayError, PortInUse, WorkerStartError
from gateway.log import EventLog
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.actor import WorkerCommand
from gateway.workers.gpu_pool import GpuPool
from gateway.workers.gpus import Quarantine
from gateway.workers.nvml import Nvml
from gateway.workers.placement import Gpu
from gateway.workers.spec import WorkerSpec
from tests.control.fakes import FAKE_GATEWAY, Fleet, NoAdmin, RecordingWatcher, on_free_ports, settings, spec
from tests.workers.fake_nvml import FakeNvml

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


class Running:
    """A supervisor at work, with everything a test looks at."""

    def __init__(self, supervisor: Supervisor, fleet: Fleet, watcher: RecordingWatcher) -> None:
        self.supervisor = supervisor
        self.fleet = fleet
        self.watcher = watcher
        self.error: GatewayError | None = None
        self.done = anyio.Event()

    async def get(self, path: str = "/") -> object:
        """What the gateway process answers, over a new connection."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            return (await client.get(self.watcher.addresses.public + path)).json()

    async def snapshot_until(self, wanted: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        """The gateway process's newest snapshot, once it is as wanted."""
        while True:
            found = await self.get("/snapshot")
            if isinstance(found, dict) and wanted(found):
                return found

    def pid(self) -> int:
        pid = self.supervisor.slots[0].pid
        assert pid is not None
        return pid


def plan(
    tmp_path: Path, configured: Settings, fleet: Fleet, watcher: RecordingWatcher, specs: tuple[WorkerSpec, ...]
) -> SupervisorPlan:
    state = tmp_path / "state"
    (tmp_path / "run").mkdir(exist_ok=True)
    clock = SystemClock()
    with held(state) as directory:
        pass
    return SupervisorPlan(
        settings=configured,
        specs=specs,
        make_actor=fleet.make,
        make_admin=lambda _: NoAdmin(),
        state=directory,
        runtime_dir=tmp_path / "run",
        gateway_argv=FAKE_GATEWAY,
        clock=clock,
        log=EventLog(lambda line: None, clock),
        watcher=watcher,
        sweep=lambda: (),
    )


@asynccontextmanager
async def running(
    tmp_path: Path,
    configured: Settings | None = None,
    *,
    specs: tuple[WorkerSpec, ...] | None = None,
    obeys: bool = True,
    **changes: Any,
) -> AsyncIterator[Running]:
    """
    A supervisor that runs inside the block and is stopped at its end; its GatewayError is in `error`. `changes` are
    fields of its plan.
    """
    fleet, watcher = Fleet(obeys=obeys), RecordingWatcher()
    specs = specs if specs is not None else (spec(),)
    made = plan(tmp_path, on_free_ports(configured or settings()), fleet, watcher, specs)
    supervisor = Supervisor(replace(made, **changes))
    run = Running(supervisor, fleet, watcher)

    async def serve() -> None:
        try:
            await supervisor.run()
        except GatewayError as exc:
            run.error = exc
        run.done.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            await watcher.until(lambda: "listening" in watcher.words)
            try:
                yield run
            finally:
                supervisor.stop("end of test")
                supervisor.stop("end of test")
            await run.done.wait()


def ready(launch_id: str = "l1", port: int = 1234) -> dict[str, object]:
    """The status changes of a worker that has become READY."""
    return {"launch_id": launch_id, "address": WorkerAddress(host="127.0.0.1", port=port), "changed_at_s": 2.0}


async def test_a_change_of_a_worker_reaches_the_gateway_process_with_a_higher_version(tmp_path: Path) -> None:
    """Versions only grow, and the process that asks after the change sees it within 100 ms (plus this machine)."""
    async with running(tmp_path) as run:
        first = await run.snapshot_until(lambda found: True)
        run.fleet.workers["m-0"].become(WorkerState.READY, **ready())
        with anyio.fail_after(30):
            second = await run.snapshot_until(lambda found: found != first)

    assert int(str(second["version"])) > int(str(first["version"]))


async def test_a_change_reaches_every_one_of_several_gateway_processes(tmp_path: Path) -> None:
    """Four processes, one worker that dies: each of them hears of it."""
    async with running(tmp_path, settings(processes=4)) as run:
        await run.watcher.until(lambda: "listening" in run.watcher.words)
        with anyio.fail_after(20):
            while not all(slot.serving for slot in run.supervisor.slots):
                await anyio.lowlevel.checkpoint()
        run.fleet.workers["m-0"].become(WorkerState.READY, **ready())
        run.fleet.workers["m-0"].become(WorkerState.BACKOFF)
        version = run.supervisor.snapshot().version - 1
        heard: set[int] = set()
        while heard != {slot.pid for slot in run.supervisor.slots}:
            found = await run.snapshot_until(lambda snapshot: True)
            if int(str(found["version"])) >= version:
                heard.add(int(str(found["pid"])))

    assert 4 == len(heard)


async def test_serving_is_announced_once_and_only_when_a_model_can_be_asked(tmp_path: Path) -> None:
    """Two models: one ready worker of the first is not enough; a permanently failed second one is not waited for."""
    configured = settings(models={"m": {"model": "a/a"}, "n": {"model": "b/b"}})
    async with running(tmp_path, configured, specs=(spec(), spec("n-0", "n"))) as run:
        await run.watcher.until(lambda: bool(run.supervisor.slots) and run.supervisor.slots[0].serving)
        run.fleet.workers["m-0"].become(WorkerState.READY, **ready())
        run.fleet.workers["n-0"].become(WorkerState.STARTING)
        await run.snapshot_until(lambda found: int(str(found["version"])) > 2)
        assert "serving" not in run.watcher.words
        run.fleet.workers["n-0"].become(WorkerState.FAILED, last_failure="no such model")
        await run.watcher.until(lambda: "serving" in run.watcher.words)
        run.fleet.workers["m-0"].become(WorkerState.UNHEALTHY)
        run.fleet.workers["m-0"].become(WorkerState.READY)

    assert 1 == run.watcher.words.count("serving")
    assert run.error is None


async def test_the_supervisor_gives_up_when_no_worker_of_any_model_can_serve(tmp_path: Path) -> None:
    """Each reason once with the workers that have it, exit code 6, nothing left."""
    async with running(tmp_path, specs=(spec(), spec("m-1"))) as run:
        run.fleet.workers["m-0"].become(WorkerState.FAILED, last_failure="set models.m.launch.max_model_len lower")
        assert not run.done.is_set()
        run.fleet.workers["m-1"].become(WorkerState.FAILED, last_failure="set models.m.launch.max_model_len lower")
        await run.done.wait()

    assert isinstance(run.error, WorkerStartError)
    assert 6 == run.error.exit_code
    assert "m-0, m-1: set models.m.launch.max_model_len lower" in str(run.error)
    assert all(worker.ended for worker in run.fleet.workers.values())


async def test_a_fleet_that_served_once_is_not_given_up(tmp_path: Path) -> None:
    """All workers failed later: clients get 503 and the operator can start one; the program stays."""
    async with running(tmp_path) as run:
        run.fleet.workers["m-0"].become(WorkerState.READY, **ready())
        await run.watcher.until(lambda: "serving" in run.watcher.words)
        version = int(str((await run.snapshot_until(lambda found: True))["version"]))
        run.fleet.workers["m-0"].become(WorkerState.FAILED, last_failure="crashed five times")
        await run.snapshot_until(lambda found: int(str(found["version"])) > version)
        assert not run.done.is_set()

    assert run.error is None


async def test_a_killed_gateway_process_is_replaced_without_a_refused_connection(tmp_path: Path) -> None:
    """The listening socket stays open in the supervisor: a client that connects in between waits and is served."""
    async with running(tmp_path) as run:
        before = await run.get()
        killed = run.pid()
        os.kill(killed, signal.SIGKILL)
        refused = 0
        after = before
        while after == before:
            try:
                after = await run.get()
            except httpx.ConnectError:
                refused += 1
            except httpx.TransportError:
                continue  # a connection the dead process had accepted

        assert 0 == refused
        assert killed != run.pid()
        assert 1 == run.supervisor.slots[0].restarts
        assert [] == run.fleet.workers["m-0"].commands, "workers are not touched"


async def test_the_next_gateway_process_starts_with_the_present_fleet(tmp_path: Path) -> None:
    """It need not wait for a change to know its workers."""
    async with running(tmp_path) as run:
        run.fleet.workers["m-0"].become(WorkerState.READY, **ready())
        version = int(str((await run.snapshot_until(lambda found: int(str(found["version"])) > 1))["version"]))
        os.kill(run.pid(), signal.SIGKILL)
        with anyio.fail_after(20):
            while True:
                try:
                    found = await run.snapshot_until(lambda found: True)
                    break
                except httpx.TransportError:
                    continue

    assert int(str(found["version"])) >= version


async def test_what_gateway_processes_see_reaches_the_worker(tmp_path: Path) -> None:
    """A failure with its launch, and the load; a killed process has nothing in flight any more."""
    async with running(tmp_path) as run:
        worker = run.fleet.workers["m-0"]
        worker.become(WorkerState.READY, **ready())
        await run.get("/fail")
        with anyio.fail_after(30):
            while not worker.loads or worker.loads[-1] != (2, 0.5):
                await run.get()
        assert 2 == run.supervisor.load("m-0").in_flight
        assert {"m-0": 0.5} == run.supervisor.progress_ages()
        os.kill(run.pid(), signal.SIGKILL)
        with anyio.fail_after(30):
            while worker.loads[-1] != (0, None):
                await anyio.lowlevel.checkpoint()

    assert [("connect", "refused", "l1")] == worker.failures


async def test_a_gateway_process_that_breaks_the_channel_is_killed(tmp_path: Path) -> None:
    """It is replaced like one that crashed."""
    async with running(tmp_path, settings(models={"garbage": {"model": "a/a"}}), specs=()) as run:
        with anyio.fail_after(20):
            while run.supervisor.slots[0].restarts < 2:
                await anyio.lowlevel.checkpoint()


async def test_a_gateway_process_that_never_comes_up_ends_the_supervisor(tmp_path: Path) -> None:
    """A broken installation is said, not retried for ever, and the workers are stopped."""
    async with running(tmp_path, settings(models={"dies": {"model": "a/a"}}), specs=(spec(model="dies"),)) as run:
        await run.done.wait()

    assert isinstance(run.error, GatewayProcessBroken)
    assert "exit code 3" in str(run.error)
    assert run.fleet.workers["m-0"].ended


async def test_the_order_of_a_stop(tmp_path: Path) -> None:
    """The gateway process hears that the fleet drains and leaves before a serving worker is stopped; one that serves
    nobody yet is stopped at once."""
    async with running(tmp_path, specs=(spec(), spec("m-1"))) as run:
        serving, starting = run.fleet.workers["m-0"], run.fleet.workers["m-1"]
        serving.become(WorkerState.READY, **ready())
        starting.become(WorkerState.STARTING)
        await run.watcher.until(lambda: "serving" in run.watcher.words)
        process = psutil.Process(run.pid())
        run.supervisor.stop("SIGTERM")
        with anyio.fail_after(30):
            await run.done.wait()

    assert run.error is None
    assert ["stopping SIGTERM", "stopped"] == [word for word in run.watcher.words if word.startswith("stop")]
    assert WorkerCommand.SHUTDOWN is serving.commands[0]
    assert not serving.cancelled
    assert not starting.cancelled
    assert not process.is_running()


async def test_a_worker_that_does_not_stop_is_cancelled_in_time(tmp_path: Path) -> None:
    """Cancelling its task is what kills its processes; the whole stop stays far below 30 s."""
    async with running(tmp_path, obeys=False) as run:
        run.fleet.workers["m-0"].become(WorkerState.READY, **ready())
        await run.watcher.until(lambda: "serving" in run.watcher.words)
        run.supervisor.stop("SIGTERM")
        with anyio.fail_after(20):
            await run.done.wait()

    assert run.fleet.workers["m-0"].cancelled
    assert run.watcher.took_s is not None
    assert run.watcher.took_s < 20


async def test_a_gateway_process_that_does_not_drain_is_killed(tmp_path: Path) -> None:
    """Its drain time passes, then it is killed and the workers are stopped."""
    configured = settings(models={"hangs": {"model": "a/a"}}, drain_timeout_s=1)
    async with running(tmp_path, configured, specs=(spec(model="hangs"),)) as run:
        await run.get()
        process = psutil.Process(run.pid())
        run.supervisor.stop("SIGTERM")
        with anyio.fail_after(20):
            await run.done.wait()

    assert not process.is_running()
    assert run.fleet.workers["m-0"].ended


async def test_a_second_signal_skips_the_waiting(tmp_path: Path) -> None:
    """With ten minutes of drain time left, everything is gone in seconds."""
    configured = settings(models={"hangs": {"model": "a/a"}}, drain_timeout_s=600)
    async with running(tmp_path, configured, specs=(spec(model="hangs"),)) as run:
        await run.get()
        run.supervisor.stop("SIGINT")
        run.supervisor.stop("SIGINT")
        with anyio.fail_after(20):
            await run.done.wait()

    assert run.watcher.took_s is not None
    assert run.watcher.took_s < 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signals_stop_the_fleet(tmp_path: Path, number: signal.Signals) -> None:
    """Also where the tests themselves were started with the signal ignored, as under nohup."""
    inherited = signal.signal(number, signal.SIG_DFL)
    try:
        await signal_stops_the_fleet(tmp_path, number)
    finally:
        signal.signal(number, inherited)


async def signal_stops_the_fleet(tmp_path: Path, number: signal.Signals) -> None:
    async with running(tmp_path) as run:
        await run.get()
        os.kill(os.getpid(), number)
        with anyio.fail_after(20):
            await run.done.wait()

    assert f"stopping {number.name}" in run.watcher.words
    assert run.error is None


async def test_a_port_in_use_starts_nothing(tmp_path: Path) -> None:
    """No worker's task has run and no gateway process was started."""
    fleet, watcher = Fleet(), RecordingWatcher()
    with socket.create_server(("127.0.0.1", 0)) as other:
        configured = settings(listen={"port": other.getsockname()[1]})
        supervisor = Supervisor(plan(tmp_path, configured, fleet, watcher, (spec(),)))
        with pytest.raises(PortInUse):
            await supervisor.run()

    assert [] == watcher.words
    assert not fleet.workers["m-0"].ended


async def test_a_public_address_without_keys_is_refused(tmp_path: Path) -> None:
    supervisor = Supervisor(
        plan(tmp_path, settings(listen={"host": "0.0.0.0"}), Fleet(), RecordingWatcher(), (spec(),))
    )
    with pytest.raises(ConfigurationError, match="allow_anonymous"):
        await supervisor.run()


async def test_a_gpu_out_of_use_is_reported_until_it_is_returned(tmp_path: Path) -> None:
    """Its return is a line in the log; one that is in use, or that there is not, is none, and nothing happens."""
    lines: list[bytes] = []
    pool = GpuPool(Nvml(FakeNvml(2)), [Gpu(0), Gpu(1)], clock=SystemClock())
    pool.quarantine(1, Quarantine("the driver reported Xid 79"))
    log = EventLog(lines.append, SystemClock())
    async with running(tmp_path, quarantines=pool, log=log) as run:
        before = run.supervisor.report().quarantined_gpus
        answers = [run.supervisor.return_gpu(index) for index in (0, 7, 1, 1)]
        after = run.supervisor.report().quarantined_gpus

    assert [(1, "the driver reported Xid 79")] == [(each.gpu, each.reason) for each in before]
    assert [None, None, "the driver reported Xid 79", None] == answers
    assert () == after
    assert 1 == len([line for line in lines if b"gpu_returned" in line])


async def test_the_report_says_what_runs(tmp_path: Path) -> None:
    """The figures of `gateway status` are those of the workers and processes themselves."""
    async with running(tmp_path, specs=(spec(), spec("m-1"))) as run:
        run.fleet.workers["m-0"].become(WorkerState.READY, **ready(port=4321), pid=77, gpus=(1,))
        run.fleet.workers["m-1"].become(WorkerState.BACKOFF, restarts=3, last_failure="it ended")
        await run.watcher.until(lambda: "serving" in run.watcher.words)
        report = run.supervisor.report()

    first, second = report.workers
    (model,) = report.models
    (process,) = report.gateway_processes
    assert (WorkerState.READY, 77, "127.0.0.1:4321", 4321, (1,)) == (
        first.state,
        first.pid,
        first.address,
        first.port,
        first.gpus,
    )
    assert (WorkerState.BACKOFF, 3, "it ended") == (second.state, second.restarts, second.last_failure)
    assert (1, 2) == (model.ready, model.workers)
    assert process.serving
    assert run.watcher.addresses.public == report.public_url
