"""
Real gateway processes under a real supervisor, in front of simulated workers that live in the test's own event loop.

Only the workers' tasks are fakes (`FakeWorker`): they are READY from the start, and the test may say otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from gateway.clock import SystemClock
from gateway.config.settings import Settings
from gateway.control.gateway_process import ProcessState, gateway_argv
from gateway.control.operations import OperationReport
from gateway.control.state_dir import held
from gateway.control.status_report import GatewayProcessLine
from gateway.control.supervisor import Supervisor
from gateway.control.supervisor_plan import SupervisorPlan
from gateway.log import EventLog
from gateway.types import WorkerAddress, WorkerState
from loadtest.servers.simulation.options import SimulatorOptions
from loadtest.servers.simulator import serving
from tests.control.fakes import Fleet as FakeFleet
from tests.control.fakes import NoAdmin, RecordingWatcher, spec
from tests.e2e.served import free_ports
from tests.proxy.raw_client import RawConnection, connect


class Listening(Protocol):
    """What a worker must offer: scripted servers do."""

    port: int


MODEL = "sim"
QUICK = SimulatorOptions(itl_ms=5, itl_ms_per_seq=0, prefill_ms_per_token=0)


def configured(processes: int, **top: Any) -> Settings:
    """One model, and ports of its own."""
    public, admin = free_ports(2)
    document: dict[str, Any] = {
        "models": {MODEL: {"model": "some/model", **top.pop("model", {})}},
        "listen": {"port": public},
        "admin": {"port": admin},
        "processes": processes,
        "drain_timeout_s": 20,
    }
    return Settings.model_validate(document | top)


class Fleet:
    """A running supervisor with everything a test looks at."""

    def __init__(self, supervisor: Supervisor, workers: FakeFleet, watcher: RecordingWatcher) -> None:
        self.supervisor = supervisor
        self.workers = workers
        self._watcher = watcher

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self._watcher.addresses.public.rpartition(":")[2])

    @property
    def lines(self) -> tuple[GatewayProcessLine, ...]:
        """What `gateway status` says of the gateway processes."""
        return self.supervisor.report().gateway_processes

    @property
    def pids(self) -> list[int]:
        """Of the processes that serve, slot by slot."""
        return [line.pid for line in self.lines if line.state is ProcessState.SERVING and line.pid is not None]

    async def all_serve(self, count: int) -> None:
        """Until so many processes serve; the test's deadline limits it."""
        await until(lambda: len(self.pids) == count)

    async def replaced(self) -> None:
        """New processes with the same settings, as `gateway reload --processes` brings them."""
        done = await self.replacement()
        assert not done.failed, done.lines

    async def replacement(self) -> OperationReport:
        """The same, however it ends."""
        reshaping = self.supervisor.reshaping
        begun = reshaping.replace_processes()
        await until(lambda: reshaping.latest.number == begun.number and not reshaping.latest.running)
        return reshaping.latest

    async def resized(self, processes: int) -> None:
        """Another number of processes, as a reload brings it."""
        reshaping = self.supervisor.reshaping
        settings = reshaping.settings.model_copy(update={"processes": processes})
        await reshaping.use(settings, reshaping.specs)

    def total(self, metric: str, *values: str) -> float:
        """A counter's or gauge's sum over all series whose label values include these."""
        merged = self.supervisor.totals.merged().items()
        return sum(cells[0] for (kind, labels), cells in merged if kind.name == metric and set(values) <= {*labels})

    def owners(self) -> dict[int, int]:
        """By a client's own port: the pid of the process that has accepted its connection."""
        found = {}
        for line in self.lines:
            if line.pid is None:
                continue
            for connection in psutil.Process(line.pid).net_connections(kind="tcp"):
                if connection.laddr and connection.laddr.port == self.port and connection.raddr:
                    found[connection.raddr.port] = line.pid
        return found


@asynccontextmanager
async def one_to_each(gateway: Fleet) -> AsyncIterator[dict[int, RawConnection]]:
    """A client's connection to every process that serves, by pid. The kernel chooses, so it takes some tries."""
    async with AsyncExitStack() as stack:
        mine: dict[int, RawConnection] = {}
        by_pid: dict[int, RawConnection] = {}
        while not by_pid.keys() >= {*gateway.pids}:
            for _ in range(8):
                connection = await stack.enter_async_context(connect(gateway.port))
                mine[connection.writer.get_extra_info("sockname")[1]] = connection
            await until(lambda: mine.keys() <= gateway.owners().keys())
            by_pid = {pid: mine[port] for port, pid in gateway.owners().items() if port in mine}
        yield by_pid


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that nobody announces; the test's own deadline limits it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@asynccontextmanager
async def fleet(
    folder: Path,
    settings: Settings,
    *,
    workers: int = 2,
    simulator: SimulatorOptions = QUICK,
    servers: Sequence[Listening] = (),
    code: Path | None = None,
) -> AsyncIterator[Fleet]:
    """
    A gateway of real processes over READY workers, simulated ones or `servers`; all processes serve when the block
    begins. What the processes log is in `folder / "log"`; their code comes from the folder `code` if given.
    """
    fakes, watcher, clock = FakeFleet(), RecordingWatcher(), SystemClock()
    with held(folder / "state") as directory:
        pass
    (folder / "run").mkdir()
    specs = tuple(spec(f"{MODEL}-{number}", MODEL) for number in range(len(servers) or workers))
    supervisor = Supervisor(
        SupervisorPlan(
            settings=settings,
            specs=specs,
            make_actor=fakes.make,
            make_admin=lambda _: NoAdmin(),
            state=directory,
            runtime_dir=folder / "run",
            # Same process, other standard error.
            gateway_argv=[
                *("sh", "-c", 'log="$0"; exec "$@" 2>>"$log"', str(folder / "log")),
                *(("env", f"PYTHONPATH={code}") if code is not None else ()),
                *gateway_argv(),
            ],
            clock=clock,
            log=EventLog(lambda line: None, clock),
            watcher=watcher,
            sweep=lambda: (),
            keys_file=str(directory.keys_file),
        )
    )
    async with AsyncExitStack() as stack:
        places = servers or [await stack.enter_async_context(serving(simulator)) for _ in specs]
        for number, (each, at) in enumerate(zip(fakes.workers.values(), places, strict=True)):
            each.status = replace(
                each.status,
                state=WorkerState.READY,
                launch_id=f"launch-{number}",
                address=WorkerAddress(host="127.0.0.1", port=at.port),
            )
        running = asyncio.create_task(supervisor.run())
        try:
            await watcher.until(lambda: "listening" in watcher.words)
            found = Fleet(supervisor, fakes, watcher)
            await until(lambda: running.done() or len(found.pids) == settings.processes)
            if running.done():
                await running
            yield found
        finally:
            supervisor.stop("end of test")
            supervisor.stop("end of test")
            await running
