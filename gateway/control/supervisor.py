"""
The supervisor: the one owner of everything that runs.

It holds the listening sockets, the workers' tasks, the gateway processes and the admin server in one task group, tells
gateway processes what changed, tells workers what gateway processes saw, and takes everything down in order:

    1. gateway processes stop accepting and finish their streams (at most `drain_timeout_s`); workers that serve nobody
       yet are stopped meanwhile,
    2. workers are stopped,
    3. what is left is killed.

A second signal skips the waiting.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import anyio.abc

from gateway import __version__
from gateway.config.settings import Settings
from gateway.control.columns import Columns
from gateway.control.front import Front
from gateway.control.gateway_process import GatewaySlot, SlotEvents
from gateway.control.instruments import Instruments
from gateway.control.listeners import Listeners
from gateway.control.load_book import Load, LoadBook
from gateway.control.operations import OperationReport
from gateway.control.pulse import Pulse
from gateway.control.quarantine import quarantined_gpus
from gateway.control.reload import ReloadAnswer
from gateway.control.reshaping import Reshaping
from gateway.control.roster import Roster
from gateway.control.snapshots import build_snapshot
from gateway.control.sockets import listen, listen_unix, require_public_bind, url
from gateway.control.state_dir import Endpoint
from gateway.control.status_report import StatusReport, model_lines, process_line, worker_lines
from gateway.control.supervisor_plan import SupervisorPlan
from gateway.control.vitals import Vitals
from gateway.control.watcher import Addresses
from gateway.errors import GatewayError, WorkerStartError
from gateway.fleet import InFlightBoard
from gateway.keys import count_keys
from gateway.messages import Hello, LoadReport, ToSupervisor, WorkerFailure
from gateway.metrics import Board, StartDurations, Totals
from gateway.metrics.catalogue import QUEUE_DEPTH
from gateway.types import FleetSnapshot, WorkerState
from gateway.workers.actor import Actor, WorkerCommand
from gateway.workers.status import WorkerStatus

# What the stop may take beyond `drain_timeout_s`: with the default of 25 s everything is gone within 30 s. A gateway
# process ends its last streams at the drain deadline and needs a moment to say so; workers then have the rest of the
# time, which is all of it when nothing was in flight, but never less than the minimum.
LAST_WORDS_S = 1.0
HURRIED_EXIT_S = 0.5
STOP_MARGIN_S = 4.0
WORKER_STOP_MINIMUM_S = 2.0

FAILURE = "failure"
"""The reason of a stop that nobody asked for; the error that `run` raises says more."""


class Supervisor(SlotEvents):
    """Runs one fleet. `run` is called once."""

    def __init__(self, plan: SupervisorPlan) -> None:
        self._plan = plan
        self._pulse = Pulse()
        self._stop = anyio.Event()
        self._hurry = anyio.Event()
        self._reason = ""
        self._fatal: GatewayError | None = None
        self._draining = False
        self._version = 0
        self.totals = Totals()
        self.start_durations = StartDurations()
        self._addresses = Addresses(public="", admin="")
        self._began_s = plan.clock.monotonic()
        self._created = int(plan.clock.unix())
        self._book = LoadBook()
        self._in_flight = InFlightBoard.create()
        self._columns = Columns(self._in_flight)
        self._front = Front(self, self._in_flight, plan.clock, plan.log, self._fail)
        self.instruments = Instruments(plan.clock, lambda: self.settings.models, plan.gpus, plan.log, self._front)
        self._ever_ready: set[str] = set()
        self._states: dict[str, WorkerState] = {}
        self._announced = False
        self._roster = Roster(plan.specs, plan.make_actor, self._on_change)
        self.reshaping = Reshaping(plan, self._roster, self._front, self._pulse, self.totals, self._publish)

    # What the admin API sees.

    @property
    def settings(self) -> Settings:
        """The configuration that runs."""
        return self.reshaping.settings

    @property
    def actors(self) -> Mapping[str, Actor]:
        """All workers by name, in configuration order."""
        return self._roster.actors

    @property
    def draining(self) -> bool:
        """The gateway was asked to stop."""
        return self._draining

    @property
    def slots(self) -> Sequence[GatewaySlot]:
        """The gateway processes."""
        return self._front.slots

    @property
    def statuses(self) -> list[WorkerStatus]:
        """All workers, in configuration order."""
        return [actor.status for actor in self.actors.values()]

    def load(self, worker: str) -> Load:
        """What gateway processes have on the worker's current launch, as of their last reports."""
        return self._book.of(worker, self.actors[worker].status.launch_id)

    def progress_ages(self) -> Mapping[str, float]:
        """By worker with requests in flight: seconds since its last byte, as of the last reports."""
        loads = {name: self.load(name) for name in self.actors}
        return {name: load.silent_s for name, load in loads.items() if load.in_flight and load.silent_s is not None}

    def report(self) -> StatusReport:
        """Everything `gateway status` shows."""
        now_s = self._plan.clock.monotonic()
        statuses = self.statuses
        return StatusReport(
            pid=os.getpid(),
            version=__version__,
            uptime_s=round(now_s - self._began_s, 3),
            draining=self._draining,
            public_url=self._addresses.public,
            admin_url=self._addresses.admin,
            models=model_lines(self.settings, statuses, self.totals.of((QUEUE_DEPTH,))),
            workers=worker_lines(statuses, now_s, self._worker_in_flight, self._vitals),
            gateway_processes=tuple(process_line(slot, now_s) for slot in (*self._front.slots, *self._front.leaving)),
            operation=self.reshaping.latest,
            in_flight=self._in_flight.total(),
            quarantined_gpus=quarantined_gpus(self._plan.quarantines),
        )

    def _worker_in_flight(self, worker: str) -> int:
        return self._columns.in_flight(self.actors[worker].view)

    def _vitals(self, worker: str, launch_id: str) -> Vitals:
        signs = self._plan.vitals
        return signs.of(worker, launch_id) if signs is not None else Vitals()

    def stop(self, reason: str) -> None:
        """Take everything down; a second call hurries. Returns at once."""
        if self._stop.is_set():
            self._hurry.set()
            return
        self._reason = reason
        self._stop.set()

    async def reload(self, *, dry_run: bool) -> ReloadAnswer:
        """See `Reshaping`."""
        return await self.reshaping.reload(dry_run=dry_run)

    def replace_processes(self) -> OperationReport:
        """See `Reshaping`."""
        return self.reshaping.replace_processes()

    def restart(self, models: Collection[str], minimum: int | None) -> OperationReport:
        """See `Reshaping`."""
        return self.reshaping.restart(models, minimum)

    def command(self, name: str, command: WorkerCommand) -> None:
        """An operator's command for one worker."""
        self._roster.command(name, command)

    def return_gpu(self, index: int) -> str | None:
        """Use a GPU again that is out of use; why it was, None when it was not."""
        gpus = self._plan.quarantines
        why = gpus.quarantined.get(index) if gpus is not None else None
        if gpus is None or why is None:
            return None
        gpus.forgive(index)
        self._plan.log.event("gpu_returned", gpu=index, detail=why.reason)
        return why.reason

    # Running.

    async def run(self) -> None:
        """
        Serve until `stop` or a signal.

        Raises:
            PortInUse, ConfigurationError: A socket cannot be opened. Nothing was started.
            WorkerStartError: No worker of any model can be started.
            GatewayProcessBroken: The gateway process does not come up.
        """
        settings = self._plan.settings
        with ExitStack() as stack:
            stack.callback(self._in_flight.close)
            require_public_bind(
                settings.listen.host,
                keys_configured=bool(self._plan.keys_file) and count_keys(Path(self._plan.keys_file)) > 0,
                allow_anonymous=settings.allow_anonymous,
            )
            opened = listen(settings.listen.host, settings.listen.port, key="listen", count=settings.processes)
            public = Listeners(opened)
            stack.callback(public.close)
            (admin,) = listen(settings.admin.host, settings.admin.port, key="admin")
            stack.enter_context(admin)
            path = str(self._plan.runtime_dir / "admin.sock")
            unix = stack.enter_context(listen_unix(path))
            self._addresses = addresses = Addresses(
                public=url(public.of(0), settings.listen.host), admin=url(admin, settings.admin.host)
            )
            self._plan.state.write_endpoint(
                Endpoint(pid=os.getpid(), socket=path, public_url=addresses.public, admin_url=addresses.admin)
            )
            self._plan.watcher.listening(addresses)
            await self._run_all(public, admin, unix)
        if self._fatal is not None:
            raise self._fatal

    async def _run_all(self, public: Listeners, admin: socket.socket, unix: socket.socket) -> None:
        self._front.open(public, self.reshaping.front_plan(self.settings, self._plan.specs))
        # So that the first gateway process knows the fleet from its start, as every later one does.
        self._publish()
        front_done, workers_done = anyio.Event(), anyio.Event()
        began_s = 0.0
        async with anyio.create_task_group() as group:
            await group.start(self._receive_signals)
            group.start_soon(self._plan.watcher.run)
            group.start_soon(self._plan.make_admin(self).serve, admin, unix)
            group.start_soon(self._publish_changes)
            group.start_soon(self.reshaping.run)
            if self._plan.vitals is not None:
                group.start_soon(self._plan.vitals.run, lambda: [actor.view for actor in self.actors.values()])
            if self._plan.gpus is not None:
                group.start_soon(self._plan.gpus.run)
            group.start_soon(_then_set, self._roster.run, workers_done)
            group.start_soon(_then_set, self._front.run, front_done)
            await self._stop.wait()
            began_s = self._plan.clock.monotonic()
            await self._take_down(front_done, workers_done)
            # Whatever has not stopped by now is killed by its own task when that is cancelled.
            group.cancel_scope.cancel()
        survivors = await anyio.to_thread.run_sync(self._plan.sweep)
        self._plan.watcher.stopped(self._plan.clock.monotonic() - began_s, survivors)

    async def _receive_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup, and then it stays so
            wanted.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*wanted) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP and self.reshaping.reloadable:
                    await self.reshaping.reload_on_signal()
                else:
                    self.stop(signal.Signals(number).name)

    async def _take_down(self, front_done: anyio.Event, workers_done: anyio.Event) -> None:
        drain_s = self.settings.drain_timeout_s
        began_s = self._plan.clock.monotonic()
        self._plan.watcher.stopping(self._reason)
        self._plan.log.event("stopping", reason=self._reason, drain_timeout_s=drain_s)
        self._draining = True
        self._publish()
        self._roster.shut_down()
        self._front.drain(drain_s)
        for actor in self.actors.values():
            if actor.status.state not in (WorkerState.READY, WorkerState.DRAINING, WorkerState.UNHEALTHY):
                actor.command(WorkerCommand.SHUTDOWN, drain_s=0)
        await self._wait_or_hurry(front_done, drain_s + LAST_WORDS_S)
        if not front_done.is_set():
            self._front.drain(0)
            with anyio.move_on_after(HURRIED_EXIT_S):
                await front_done.wait()
        self._front.kill()
        for actor in self.actors.values():
            actor.command(WorkerCommand.SHUTDOWN, drain_s=0)
        left_s = began_s + drain_s + STOP_MARGIN_S - self._plan.clock.monotonic()
        await self._wait_or_hurry(workers_done, max(left_s, WORKER_STOP_MINIMUM_S))

    async def _wait_or_hurry(self, event: anyio.Event, limit_s: float) -> None:
        with anyio.move_on_after(limit_s):
            async with anyio.create_task_group() as group:
                group.start_soon(_then_cancel, event, group.cancel_scope)
                group.start_soon(_then_cancel, self._hurry, group.cancel_scope)

    # Changes of the workers, outwards.

    def _on_change(self, status: WorkerStatus) -> None:
        before = self._states.get(status.name)
        self._states[status.name] = status.state
        self.instruments.changed(status)
        if status.state is WorkerState.READY:
            self._ever_ready.add(status.name)
            if before is WorkerState.STARTING and not status.static:
                self._plan.on_ready(status.launch_id)
                first_of_adopted = status.name in self._plan.adopted and not status.restarts
                if status.started_at_s is not None and not first_of_adopted:
                    self.start_durations.observe(status.model, status.changed_at_s - status.started_at_s)
        self._pulse.beat()

    async def _publish_changes(self) -> None:
        while True:
            self._publish()
            self._plan.watcher.changed(self.statuses)
            self._judge()
            await self._pulse.wait()

    def _publish(self) -> None:
        self._front.publish(self.snapshot())

    def snapshot(self) -> FleetSnapshot:
        """The fleet as of now, with a version of its own."""
        self._version += 1
        views = self._columns.placed(actor.view for actor in self.actors.values())
        return build_snapshot(self._version, self.settings, views, created=self._created, draining=self._draining)

    def _judge(self) -> None:
        """Is the fleet up, or will it never be?"""
        statuses = self.statuses
        if statuses and not self._ever_ready and all(each.state is WorkerState.FAILED for each in statuses):
            self._fail(WorkerStartError(f"no worker could be started. {_reasons(statuses)}", permanent=True))
            return
        if self._announced or not self._ever_ready or not self._front.serving:
            return
        waiting = {each.model for each in statuses if each.state is not WorkerState.FAILED}
        if waiting <= {each.model for each in statuses if each.name in self._ever_ready}:
            self._announced = True
            self._plan.watcher.serving()

    def _fail(self, error: GatewayError) -> None:
        if self._fatal is None:
            self._fatal = error
        self.stop(FAILURE)

    # What gateway processes say, inwards.

    def message(self, slot: int, message: ToSupervisor) -> None:
        """A gateway process said something (see `SlotEvents`)."""
        match message:
            case Hello():
                self._pulse.beat()
            case WorkerFailure():
                actor = self.actors.get(message.worker)
                if actor is not None:
                    actor.report_failure(message.kind, message.detail, launch_id=message.launch_id)
            case LoadReport():
                self._book.replace(slot, message.loads)
                self._report_loads()

    def gone(self, slot: int, board: Board) -> None:
        """A gateway process is gone, and with it everything it had in flight (see `SlotEvents`)."""
        self.totals.retire(board)
        self._book.drop(slot)
        self._report_loads()

    def _report_loads(self) -> None:
        for name, actor in self.actors.items():
            launch_id = actor.status.launch_id
            load = self._book.of(name, launch_id)
            actor.report_load(load.in_flight, load.silent_s, launch_id=launch_id)


def _reasons(statuses: Sequence[WorkerStatus]) -> str:
    """`m-0, m-1: why.`: each reason once, with the workers that have it."""
    names: dict[str, list[str]] = {}
    for status in statuses:
        names.setdefault(status.last_failure, []).append(status.name)
    said = " ".join(f"{', '.join(workers)}: {reason}" for reason, workers in names.items())
    # Nothing will run any more that could start a worker.
    said = re.sub(r"; when it is mended, `gateway workers start [^`]*` tries again", "", said)
    first = next(iter(names.values()))[0]
    return f"{said} Mend it and run the same command again; `gateway logs {first}` shows what the worker printed"


async def _then_set(run: Callable[[], Awaitable[None]], done: anyio.Event) -> None:
    """Run, and say when it has returned."""
    await run()
    done.set()


async def _then_cancel(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
