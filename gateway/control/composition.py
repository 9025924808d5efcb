"""Composition root of the supervisor: `gateway up` from a validated configuration to the end of the program."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import anyio
from rich.console import Console

from gateway.clock import SystemClock
from gateway.config.settings import Settings
from gateway.control.admin import TcpGuard, admin_app
from gateway.control.admin_server import UvicornAdminServer
from gateway.control.console import ConsoleWatcher
from gateway.control.gateway_process import gateway_argv
from gateway.control.machine import machine_from, require_gpus
from gateway.control.preparation import (
    LaunchEnvironment,
    Surroundings,
    machine_facts,
    prepare_engines,
    prepare_models,
    problems,
    refuse_blockers,
)
from gateway.control.records import RecordingLauncher, sweep
from gateway.control.scrape import Scraper
from gateway.control.sockets import listen, require_public_bind
from gateway.control.state_dir import StateDir, held, runtime_directory
from gateway.control.supervisor import Supervisor
from gateway.control.supervisor_plan import AdminServer, SupervisorPlan
from gateway.errors import EnvironmentProblem
from gateway.keys import count_keys
from gateway.log import EventLog
from gateway.setup.doctor import Severity
from gateway.setup.facts import PROXY_VARIABLES, MachineFacts
from gateway.types import WorkerAddress
from gateway.workers.actor import actor_for
from gateway.workers.placement import Machine
from gateway.workers.platform import adopt_orphans
from gateway.workers.ports import LoopbackPorts
from gateway.workers.probe import HttpProber
from gateway.workers.process import SessionLauncher
from gateway.workers.services import Prober, WorkerServices
from gateway.workers.spec import WorkerSpec, specs_from_settings

LAST_SWEEP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Where people read (`console`, standard output) and where the log goes (standard error)."""

    console: Console
    log_file: BinaryIO


def serve(settings_for: Callable[[], Settings], around: Surroundings, terminal: Terminal, *, folder: Path) -> None:
    """
    Serve until a signal. Blocks for the life of the gateway.

    Args:
        settings_for: Gives the configuration, once the state directory is ours and its leftovers are gone (the defaults
            of `gateway up` depend on which GPUs are free).
        folder: What relative model paths are relative to.

    Raises GatewayError of every kind; nothing that was started is left then.
    """
    with held(around.directories.state) as state:
        sweep_leftovers(state, terminal.console)
        settings = settings_for()
        _try_to_listen(settings, state)
        facts = machine_facts(settings, around)
        settings, specs_for = _prepared(settings, facts, around, terminal.console, folder)
        with runtime_directory(state) as runtime_dir:
            specs = specs_for(state.logs, runtime_dir)
            anyio.run(_supervise, settings, specs, state, runtime_dir, around.environ, terminal)


def sweep_leftovers(state: StateDir, console: Console) -> None:
    """
    Kill what a killed supervisor left running, before anybody looks which GPUs are free.

    Raises EnvironmentProblem when something cannot be killed: it may hold a GPU.
    """
    swept = sweep(state.records)
    if swept.workers:
        names = ", ".join(swept.workers)
        console.print(
            f"ended {len(swept.killed)} process(es) of {names}, left by a gateway that was killed", markup=False
        )
    if swept.survivors:
        pids = " ".join(map(str, swept.survivors))
        raise EnvironmentProblem(
            f"processes {pids} of an earlier gateway cannot be killed and may hold a GPU",
            fix=f"ps -o pid,stat,wchan,args -p '{pids}' (in state D a driver hangs: restart the machine)",
        )


def plan_workers(
    settings: Settings,
    machine: Machine,
    engines: Mapping[str, LaunchEnvironment],
    log_dir: Path,
    runtime_dir: Path,
) -> tuple[WorkerSpec, ...]:
    """All workers of the configuration on a machine."""
    return specs_from_settings(
        settings,
        engines,
        machine=machine,
        log_dir=log_dir,
        runtime_dir=runtime_dir,
        new_secret=secrets.token_urlsafe,
    )


def _try_to_listen(settings: Settings, state: StateDir) -> None:
    """Fail now, and not after minutes of set-up, when the addresses cannot be bound or the keys cannot be read."""
    keys = count_keys(state.keys_file)
    require_public_bind(settings.listen.host, keys_configured=keys > 0, allow_anonymous=settings.allow_anonymous)
    for section, key in ((settings.listen, "listen"), (settings.admin, "admin")):
        for bound in listen(section.host, section.port, key=key):
            bound.close()


def _prepared(
    settings: Settings, facts: MachineFacts, around: Surroundings, console: Console, folder: Path
) -> tuple[Settings, Callable[[Path, Path], tuple[WorkerSpec, ...]]]:
    found = problems(settings, facts)
    refuse_blockers(found)
    for finding in found:
        if finding.severity is Severity.WARNING:
            console.print(f"warning: {finding.sentence}. To mend it: {finding.fix}", markup=False, soft_wrap=True)
    machine = machine_from(facts, around.environ)
    engines = prepare_engines(settings, facts, around, base_python=sys.executable)
    require_gpus(settings, engines)
    prepared = prepare_models(settings, engines, around, folder=folder)
    return prepared, lambda logs, runtime: plan_workers(prepared, machine, engines, logs, runtime)


async def _supervise(
    settings: Settings,
    specs: tuple[WorkerSpec, ...],
    state: StateDir,
    runtime_dir: Path,
    environ: Mapping[str, str],
    terminal: Terminal,
) -> None:
    clock = SystemClock()
    adopt_orphans()
    lowered = {name.lower() for name, value in environ.items() if value}
    watcher = ConsoleWatcher(
        terminal.console,
        clock,
        tuple(settings.models),
        proxied=not lowered.isdisjoint(PROXY_VARIABLES),
        keys_required=state.keys_file.exists,
    )
    plain = EventLog.to_file(terminal.log_file, clock, settings.logging.format)
    services = WorkerServices(
        launcher=RecordingLauncher(SessionLauncher(clock), state.records),
        prober=_prober_factory(settings),
        ports=LoopbackPorts(),
        environ=environ,
        new_launch_id=lambda: secrets.token_hex(8),
        clock=clock,
    )

    def make_admin(supervisor: Supervisor) -> AdminServer:
        app = admin_app(supervisor, Scraper(clock))
        guarded = TcpGuard(app, bound_host=settings.admin.host, token=state.admin_token())
        return UvicornAdminServer(guarded, app)

    plan = SupervisorPlan(
        settings=settings,
        specs=specs,
        make_actor=lambda spec, on_change: actor_for(spec, services, on_change),
        make_admin=make_admin,
        state=state,
        keys_file=str(state.keys_file),
        runtime_dir=runtime_dir,
        gateway_argv=gateway_argv(),
        clock=clock,
        log=plain,
        watcher=watcher,
        sweep=lambda: sweep(state.records, deadline_s=LAST_SWEEP_S).survivors,
    )
    await Supervisor(plan).run()


def _prober_factory(settings: Settings) -> Callable[[WorkerAddress, str | None, str], Prober]:
    timeout_s = settings.watch.probe_timeout_s
    return lambda address, key, model: HttpProber(address, key, model, timeout_s=timeout_s)
