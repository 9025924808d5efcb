"""Composition root of the supervisor: `gateway up` from a validated configuration to the end of the program."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import anyio
from rich.console import Console

from gateway.clock import SystemClock
from gateway.config.settings import Settings
from gateway.control.admin import TcpGuard, admin_app
from gateway.control.admin_server import UvicornAdminServer
from gateway.control.adoption import Adopted, Survivor, adopt, survivors
from gateway.control.console import ConsoleWatcher, unhurried
from gateway.control.factory import FileSource, WorkerFactory, revision
from gateway.control.gateway_process import gateway_argv
from gateway.control.gpu_watch import GpuWatch
from gateway.control.leftovers import sweep_leftovers
from gateway.control.notify import Several, SystemdWatcher
from gateway.control.preparation import (
    Surroundings,
    machine_facts,
    without_ours,
)
from gateway.control.records import RecordingLauncher, note_ready, sweep
from gateway.control.reload import ReloadSource
from gateway.control.runtime_dir import runtime_directory
from gateway.control.scrape import Scraper
from gateway.control.sockets import listen, require_public_bind
from gateway.control.state_dir import StateDir, held
from gateway.control.supervisor import Supervisor
from gateway.control.supervisor_plan import AdminServer, SupervisorPlan
from gateway.control.vitals import VitalSigns
from gateway.control.watcher import Watcher
from gateway.control.web import History
from gateway.errors import PortInUse
from gateway.keys import anonymous_allowed, count_keys
from gateway.log import EventLog, adopt_foreign_logs
from gateway.setup.facts import PROXY_VARIABLES
from gateway.setup.users import Holds
from gateway.tracing import require_usable
from gateway.types import WorkerAddress
from gateway.workers.actor import actor_for
from gateway.workers.capabilities import FlagProbe
from gateway.workers.gpu_pool import GpuPool
from gateway.workers.nvml import GpuSensors, Nvml
from gateway.workers.platform import adopt_orphans
from gateway.workers.ports import LoopbackPorts
from gateway.workers.probe import HttpProber
from gateway.workers.process import SessionLauncher
from gateway.workers.services import Prober, WorkerServices
from gateway.workers.spec import WorkerSpec

LAST_SWEEP_S = 1.0
FLAGS_FILE = "engine-flags.json"
LISTEN_PATIENCE_S = 5.0
"""For the gateway processes of a killed supervisor to notice and leave the port."""
LISTEN_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """
    Where people read (`console`, standard output), where the log goes (standard error), and how they would call the
    `gateway` command there.
    """

    console: Console
    log_file: BinaryIO
    command: str = "gateway"


def serve(
    settings_for: Callable[[frozenset[int]], Settings],
    around: Surroundings,
    terminal: Terminal,
    *,
    folder: Path,
    from_file: bool,
    manager: SystemdWatcher | None = None,
) -> None:
    """
    Serve until a signal. Blocks for the life of the gateway.

    Args:
        settings_for: Gives the configuration, at the start and at every reload. It is called once the state directory
            is ours, with the pids of workers that an earlier gateway left and that may go on under this one (the
            defaults of `gateway up` depend on which GPUs are free).
        folder: What relative model paths are relative to.
        from_file: There is a file, so that a reload can find a difference.
        manager: The service manager that started us.

    Raises GatewayError of every kind; nothing that was started is left then.
    """
    with held(around.directories.state) as state, Holds(around.directories.cache, around.report) as holds:
        around = dataclasses.replace(around, hold=holds.hold)
        found = survivors(state.records)
        left = sweep_leftovers(state, terminal.console, spare={survivor.record.launch_id for survivor in found})
        ours = frozenset(pid for survivor in found for pid in survivor.pids)
        if found:
            names = ", ".join(survivor.record.worker for survivor in found)
            terminal.console.print(f"workers of a gateway that was killed still run: {names}", markup=False)
        asked = settings_for(ours)
        require_usable(asked.traces.endpoint, asked.traces.headers_file)
        # The gateway processes of a killed supervisor close their listener as soon as they notice.
        _try_to_listen(asked, state, patience_s=LISTEN_PATIENCE_S if found or left else 0.0)
        facts = without_ours(machine_facts(asked, around), ours)
        factory = WorkerFactory(facts, around, terminal.console, folder, state.logs)
        settings = factory.first(asked)
        # Up to here a failure leaves the survivors alone: the next start may adopt them.
        with runtime_directory(state, keep=[name for survivor in found for name in survivor.names]) as runtime_dir:
            try:
                factory.runtime_dir = runtime_dir
                adopted = adopt(found, factory.specs(settings), SystemClock())
                _end_the_rest(state, adopted, found, terminal.console)
                run = _Run(
                    asked=asked,
                    settings=settings,
                    adopted=adopted,
                    state=state,
                    runtime_dir=runtime_dir,
                    environ=around.environ,
                    terminal=terminal,
                    manager=manager,
                    factory=factory,
                    cache=around.directories.cache,
                )
                source = FileSource(lambda: settings_for(frozenset()), factory) if from_file else None
                anyio.run(_supervise, run, source)
            finally:
                # Before the directory goes: what they listen on and write to is in it.
                sweep(state.records, deadline_s=LAST_SWEEP_S)


def _end_the_rest(state: StateDir, adopted: Adopted, found: Sequence[Survivor], console: Console) -> None:
    """Say who is adopted, and end those that the configuration no longer asks for, or asks for otherwise."""
    for survivor in found:
        if survivor.record.launch_id in adopted.launches:
            console.print(
                f"adopted {survivor.record.worker} (pid {survivor.record.pid}), which an earlier gateway started",
                markup=False,
            )
    sweep_leftovers(state, console, spare=adopted.launches)


def _try_to_listen(settings: Settings, state: StateDir, *, patience_s: float) -> None:
    """Fail now, and not after minutes of set-up, when the addresses cannot be bound or the keys cannot be read."""
    keys = count_keys(state.keys_file)
    require_public_bind(settings.listen.host, keys_configured=keys > 0, allow_anonymous=settings.allow_anonymous)
    until_s = time.monotonic() + patience_s
    for section, key in ((settings.listen, "listen"), (settings.admin, "admin")):
        while True:
            try:
                for bound in listen(section.host, section.port, key=key):
                    bound.close()
                break
            except PortInUse:
                if time.monotonic() >= until_s:
                    raise
                time.sleep(LISTEN_AGAIN_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one supervisor is started with."""

    asked: Settings
    settings: Settings
    adopted: Adopted
    state: StateDir
    runtime_dir: Path
    environ: Mapping[str, str]
    terminal: Terminal
    manager: SystemdWatcher | None
    factory: WorkerFactory
    cache: Path


async def _supervise(run: _Run, source: ReloadSource | None) -> None:
    clock = SystemClock()
    settings, state, environ, terminal = run.settings, run.state, run.environ, run.terminal
    adoptions = dict(run.adopted.adoptions)
    adopt_orphans()
    lowered = {name.lower() for name, value in environ.items() if value}
    console = ConsoleWatcher(
        terminal.console,
        clock,
        tuple(settings.models),
        proxied=not lowered.isdisjoint(PROXY_VARIABLES),
        remote="ssh_connection" in lowered,
        keys_required=state.keys_file.exists,
        command=terminal.command,
    )
    watchers: list[Watcher] = [console] if run.manager is None else [console, run.manager]
    plain = EventLog.to_file(terminal.log_file, clock, settings.logging.format)
    adopt_foreign_logs(plain)
    gpus = _gpu_pool(run, plain, console, clock)
    services = WorkerServices(
        launcher=RecordingLauncher(SessionLauncher(clock), state.records),
        prober=_prober_factory(settings),
        ports=LoopbackPorts(),
        environ=environ,
        new_launch_id=lambda: secrets.token_hex(8),
        clock=clock,
        gpus=gpus,
        flags=FlagProbe(run.cache / FLAGS_FILE, environ, plain),
        preflight=run.factory.preflight,
    )

    scraper = Scraper(clock)

    def make_admin(supervisor: Supervisor) -> AdminServer:
        history = History(supervisor.totals.of, lambda: tuple(supervisor.settings.models), clock, plain)
        app = admin_app(supervisor, scraper, history, state.keys_file.exists)
        # Without keys, a caller of the chat box is one of the public endpoint, at the admin port's address.
        anonymous = anonymous_allowed(settings.admin.host, allow_anonymous=settings.allow_anonymous)
        guarded = TcpGuard(
            app,
            bound_host=settings.admin.host,
            token=state.admin_token(),
            chat_open=lambda: anonymous or state.keys_file.exists(),
        )
        return UvicornAdminServer(guarded, app, history.run)

    plan = SupervisorPlan(
        settings=settings,
        specs=run.adopted.specs,
        # An adoption is for the first actor of its name; the next one launches its own process.
        make_actor=lambda spec, on_change: actor_for(spec, services, on_change, adoptions.pop(spec.name, None)),
        make_admin=make_admin,
        state=state,
        keys_file=str(state.keys_file),
        runtime_dir=run.runtime_dir,
        gateway_argv=gateway_argv(),
        clock=clock,
        log=plain,
        watcher=Several(watchers),
        sweep=lambda: sweep(state.records, deadline_s=LAST_SWEEP_S).survivors,
        asked=run.asked,
        reload=source,
        revision=revision,
        on_ready=lambda launch_id: note_ready(state.records, launch_id),
        adopted=frozenset(adoptions),
        vitals=VitalSigns(scraper, plain),
        gpus=GpuWatch(Nvml, plain, on_reading=lambda sensors: _settle(gpus, sensors)),
        quarantines=gpus,
    )
    try:
        with unhurried(terminal.console):
            await Supervisor(plan).run()
    finally:
        plain.close()


def _gpu_pool(run: _Run, log: EventLog, console: ConsoleWatcher, clock: SystemClock) -> GpuPool | None:
    """The GPUs to share out, None where there are none. Raises EnvironmentProblem when the driver does not answer."""
    wanted = any(spec.variant == "cuda" and spec.static is None for spec in run.adopted.specs)
    if not wanted and not run.factory.machine.gpus:
        return None

    def quarantined(index: int, reason: str) -> None:
        log.event("gpu_quarantined", level="error", gpu=index, detail=reason)
        console.said(f"GPU {index} is out of use: {reason}")

    def weight_bytes(spec: WorkerSpec) -> int | None:
        files = run.factory.model_files(spec)
        return files.weight_bytes if files is not None else None

    return GpuPool(Nvml(), run.factory.machine.gpus, clock=clock, weight_bytes=weight_bytes, on_quarantine=quarantined)


def _settle(gpus: GpuPool | None, sensors: Sequence[GpuSensors]) -> None:
    """A GPU whose memory has come back is used again, also while no worker waits for one, who would look."""
    if gpus is not None:
        gpus.settle({each.index: each.used_bytes for each in sensors})


def _prober_factory(settings: Settings) -> Callable[[WorkerAddress, str | None, str], Prober]:
    timeout_s = settings.watch.probe_timeout_s
    return lambda address, key, model: HttpProber(address, key, model, timeout_s=timeout_s)
