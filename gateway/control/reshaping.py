"""Changing a running fleet on request: reloads and rolling restarts, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from gateway.config.settings import Settings
from gateway.control.front import Front, FrontPlan
from gateway.control.operations import OperationReport, Operations, Progress
from gateway.control.pulse import Pulse
from gateway.control.reload import ReloadAnswer, Reloader, ReloadRefused
from gateway.control.rollout import Rollout
from gateway.control.roster import Roster
from gateway.control.supervisor_plan import SupervisorPlan
from gateway.errors import GatewayError
from gateway.metrics import Layout, Totals
from gateway.setup.compiled import INTERPRETED
from gateway.types import WorkerState
from gateway.workers.spec import WorkerSpec

_OUT_OF_SERVICE = (WorkerState.STOPPED, WorkerState.FAILED, WorkerState.DRAINING)


class Reshaping:
    """
    Owns the settings that run, and whatever changes them or the workers over minutes.

    Args:
        publish: Tells gateway processes of the fleet as it is with other settings.
    """

    def __init__(
        self,
        plan: SupervisorPlan,
        roster: Roster,
        front: Front,
        pulse: Pulse,
        totals: Totals,
        publish: Callable[[], None],
    ) -> None:
        self.settings = plan.settings
        self._plan = plan
        self._roster = roster
        self._front = front
        self._pulse = pulse
        self._totals = totals
        self._publish = publish
        self._reloader = Reloader(plan.asked or plan.settings, plan.reload, plan.revision, self)
        self._operations = Operations(self._said)

    @property
    def specs(self) -> Sequence[WorkerSpec]:
        """What every worker runs with, or would if it were started."""
        return [self._roster.spec(name) for name in self._roster.actors]

    @property
    def latest(self) -> OperationReport:
        """The operation that runs, or the last that ran."""
        return self._operations.latest

    @property
    def reloadable(self) -> bool:
        """There is a file to read again."""
        return self._reloader.possible

    async def run(self) -> None:
        """Carry out what was asked for, until cancelled."""
        await self._operations.run()

    async def reload(self, *, dry_run: bool) -> ReloadAnswer:
        """
        The difference between the file and what runs; applying it begins unless it is a dry run.

        Raises ConfigurationError for the file, ReloadRefused when there is none, Busy.
        """
        wanted, found = await self._reloader.compare()
        try:
            job = self._reloader.job(wanted, found)
        except ReloadRefused as exc:
            return ReloadAnswer(changes=found, refused=str(exc))
        if dry_run or not found:
            return ReloadAnswer(changes=found)
        return ReloadAnswer(changes=found, operation=self._operations.begin("reload", job))

    async def reload_on_signal(self) -> None:
        """The same for SIGHUP: nobody waits for an answer, so it is logged and printed."""
        try:
            answer = await self.reload(dry_run=False)
        except GatewayError as exc:
            self._said("reload", str(exc), True)
            return
        if answer.refused:
            self._said("reload", answer.refused, True)
        elif not answer.changes:
            self._said("reload", "the configuration file says what already runs", False)

    def restart(self, models: Collection[str], minimum: int | None) -> OperationReport:
        """
        Restart the workers of these models one after the other; those that are stopped or failed stay so.

        Args:
            minimum: How many of each model stay available; None: all but one.

        Raises Busy.
        """
        names = [
            name
            for name, actor in self._roster.actors.items()
            if actor.spec.model in models and actor.spec.static is None and actor.status.state not in _OUT_OF_SERVICE
        ]
        minima = None if minimum is None else dict.fromkeys(models, minimum)

        async def job(progress: Progress) -> None:
            await self._rollout(self.specs, restart=names, minimum=minima).run(progress)

        return self._operations.begin("rolling restart", job)

    def replace_processes(self) -> OperationReport:
        """
        New gateway processes of the code that is installed now, with the settings that run; workers are not touched.

        Raises Busy.
        """

        async def job(progress: Progress) -> None:
            progress.say("gateway processes: starting with the code that is installed now")
            await self._front.replace(self.front_plan(self.settings, self.specs))
            progress.say("gateway processes: the new ones serve, the old ones finish their streams")

        return self._operations.begin("replacement of the gateway processes", job)

    async def use(self, settings: Settings, workers: Sequence[WorkerSpec]) -> None:
        """See `reload.Reloadable`."""
        await self._front.replace(self.front_plan(settings, workers))
        self.settings = settings
        self._roster.drain_s = settings.drain_timeout_s
        self._publish()

    async def roll(self, goal: Sequence[WorkerSpec], progress: Progress) -> None:
        """See `reload.Reloadable`."""
        await self._rollout(goal).run(progress)
        self._roster.arrange([spec.name for spec in goal])
        for spec in goal:
            there = self._roster.actors.get(spec.name)
            if (
                there is not None
                and there.spec != spec
                and self._plan.revision(there.spec) == self._plan.revision(spec)
            ):
                self._roster.hold(spec)  # how it is watched, which costs no restart now

    def front_plan(self, settings: Settings, workers: Sequence[WorkerSpec]) -> FrontPlan:
        """What gateway processes are started with. Their metrics are of these models and workers, in this order."""
        layout = Layout(tuple(settings.models), [(spec.model, spec.name) for spec in workers])
        return FrontPlan(
            processes=settings.processes,
            argv=[*self._plan.gateway_argv, *(() if settings.compiled else (INTERPRETED,))],
            settings_json=settings.model_dump_json(),
            keys_file=self._plan.keys_file,
            workers=layout.workers,
            drain_timeout_s=settings.drain_timeout_s,
            leave_timeout_s=max(model.timeouts.total_s for model in settings.models.values()),
            new_board=lambda: self._totals.create(layout),
        )

    def _rollout(
        self,
        goal: Sequence[WorkerSpec],
        restart: Collection[str] = (),
        minimum: Mapping[str, int] | None = None,
    ) -> Rollout:
        return Rollout(
            self._roster,
            goal,
            pulse=self._pulse,
            revision=self._plan.revision,
            restart=restart,
            minimum=minimum,
        )

    def _said(self, operation: str, line: str, failed: bool) -> None:
        self._plan.log.event("operation", level="error" if failed else "info", operation=operation, detail=line)
        self._plan.watcher.said(f"{operation}: {line}")
