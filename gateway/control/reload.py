"""`gateway reload`: the difference between the file and what runs, and applying just that."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio
import msgspec

from gateway.config.settings import Settings
from gateway.control.changes import Change, Effect, changes, for_gateway_processes, refusal
from gateway.control.operations import OperationReport, Progress
from gateway.control.planner import Action, Present, Step, Wanted, difference
from gateway.errors import GatewayError
from gateway.types import WorkerState
from gateway.workers.spec import WorkerSpec


class ReloadRefused(GatewayError):
    """The difference cannot be applied to a running gateway; nothing was."""


class ReloadSource(Protocol):
    """Where the configuration comes from. Both methods block and are called in a thread."""

    def read(self) -> Settings:
        """The file as it is now, with the options of the start on top. Raises ConfigurationError."""
        ...

    def prepare(self, settings: Settings) -> tuple[Settings, tuple[WorkerSpec, ...]]:
        """
        Engines and models made ready, workers placed. May take minutes when an engine is installed.

        Raises GatewayError.
        """
        ...


class ReloadAnswer(msgspec.Struct, frozen=True):
    """What `POST /reload` answers: the difference, and the operation that applies it (none after a dry run)."""

    changes: tuple[Change, ...]
    refused: str = ""
    operation: OperationReport | None = None


class Reloadable(Protocol):
    """What a reload needs of the supervisor."""

    @property
    def settings(self) -> Settings:
        """The prepared configuration that runs."""
        ...

    @property
    def specs(self) -> Sequence[WorkerSpec]:
        """What every worker runs with."""
        ...

    async def use(self, settings: Settings, workers: Sequence[WorkerSpec]) -> None:
        """New gateway processes with these settings; raises ReplacementFailed and stays as it is."""
        ...

    async def roll(self, goal: Sequence[WorkerSpec], progress: Progress) -> None:
        """Bring the workers to `goal`, one by one."""
        ...


class Reloader:
    """
    Compares and applies. The configuration *as read* is remembered, so that what set-up made of it (paths of engines
    and models) is no difference.

    Args:
        asked: The configuration as read at the start.
        source: None when the gateway was started without a file.
        revision: Names what a worker is started with.
    """

    def __init__(
        self, asked: Settings, source: ReloadSource | None, revision: Callable[[WorkerSpec], str], fleet: Reloadable
    ) -> None:
        self._asked = asked
        self._source = source
        self._revision = revision
        self._fleet = fleet

    @property
    def possible(self) -> bool:
        """There is a file to read again."""
        return self._source is not None

    async def compare(self) -> tuple[Settings, tuple[Change, ...]]:
        """
        The file as it is now and how it differs from what runs.

        Raises:
            ConfigurationProblems: What is wrong with the file.
            ReloadRefused: There is no file.
        """
        if self._source is None:
            raise ReloadRefused(
                "this gateway was started without a configuration file, so there is nothing to read again; "
                "start it with `gateway up -c FILE`"
            )
        wanted = await anyio.to_thread.run_sync(self._source.read)
        return wanted, changes(self._asked, wanted)

    def job(self, wanted: Settings, found: tuple[Change, ...]) -> Callable[[Progress], Awaitable[None]]:
        """
        What applies the difference: first the gateway processes, then the workers, one by one.

        Raises ReloadRefused when some of it cannot be applied.
        """
        if why := refusal(found):
            raise ReloadRefused(why)

        async def apply(progress: Progress) -> None:
            await self._apply(wanted, found, progress)

        return apply

    async def _apply(self, wanted: Settings, found: tuple[Change, ...], progress: Progress) -> None:
        assert self._source is not None
        prepared, specs = await anyio.to_thread.run_sync(self._source.prepare, wanted)
        present = self._fleet.specs
        goal = settled(specs, present, self._revision)
        if for_gateway_processes(found):
            progress.say("gateway processes: starting with the new settings")
            await self._fleet.use(prepared, goal)
            progress.say("gateway processes: the new ones serve, the old ones finish their streams")
        if planned := plan(goal, present, self._revision):
            progress.say(f"workers: {words(planned)}")
        if any(change.effect is Effect.NEXT_START for change in found):
            progress.say(
                "watch and start limits: with each worker's next restart (gateway workers restart --all does it now)"
            )
        await self._fleet.roll(goal, progress)
        running = {spec.name: self._revision(spec) for spec in self._fleet.specs}
        behind = {spec.model for spec in goal if running.get(spec.name) != self._revision(spec)}
        # What was not applied stays a difference, so that the next reload tries it again.
        self._asked = without(wanted, self._asked, behind)
        progress.say("done" if not behind else f"not applied: the new options of {', '.join(sorted(behind))}")


def plan(
    goal: Sequence[WorkerSpec], present: Sequence[WorkerSpec], revision: Callable[[WorkerSpec], str]
) -> list[Step]:
    """The steps between two sets of workers."""
    return list(
        difference(
            [Wanted(spec.name, spec.model, revision(spec)) for spec in goal],
            [Present(spec.name, spec.model, revision(spec), WorkerState.READY) for spec in present],
        )
    )


def words(steps: Sequence[Step]) -> str:
    """`start a-1; replace a-0`."""
    said = []
    for action in Action:
        names = [step.worker for step in steps if step.action is action]
        if names:
            said.append(f"{action} {', '.join(names)}")
    return "; ".join(said)


def settled(
    goal: Sequence[WorkerSpec], present: Sequence[WorkerSpec], revision: Callable[[WorkerSpec], str]
) -> tuple[WorkerSpec, ...]:
    """
    `goal` with what running workers keep: a worker for which only the place or the key would be another stays as it is.

    Cores are shared out anew when replicas come or go; restarting every worker for that would cost more than it gives,
    so a running one takes its new cores when it starts for another reason.
    """
    there = {spec.name: spec for spec in present}
    kept = []
    for spec in goal:
        old = there.get(spec.name)
        if old is not None:
            same = dataclasses.replace(spec, cpus=old.cpus, gpus=old.gpus, api_key=old.api_key)
            if revision(same) == revision(old):
                spec = dataclasses.replace(same, watch=spec.watch, drain_timeout_s=spec.drain_timeout_s)
        kept.append(spec)
    return tuple(kept)


def without(wanted: Settings, before: Settings, behind: set[str]) -> Settings:
    """`wanted`, but models in `behind` launch as they did before."""
    models = {
        name: model.model_copy(
            update={
                "model": before.models[name].model,
                "engine": before.models[name].engine,
                "launch": before.models[name].launch,
            }
        )
        if name in behind and name in before.models
        else model
        for name, model in wanted.models.items()
    }
    engines = dict(wanted.engines)
    for name in behind & before.models.keys():
        engine = before.models[name].engine
        if engine in before.engines:
            engines[engine] = before.engines[engine]
    return wanted.model_copy(update={"models": models, "engines": engines})
