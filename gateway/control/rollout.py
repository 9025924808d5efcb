"""Carries the planner's steps out: one way through the fleet, with the way back for a worker that does not come up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import anyio
import anyio.abc

from gateway.control.operations import Progress
from gateway.control.planner import Action, Present, Step, Wanted, difference, due
from gateway.control.pulse import Pulse
from gateway.control.roster import Roster
from gateway.types import WorkerState
from gateway.workers.actor import WorkerCommand
from gateway.workers.spec import WorkerSpec

_RESTARTED = "+restarted"
_DOWN = (WorkerState.BACKOFF, WorkerState.FAILED)


@dataclass(slots=True)
class _Move:
    """A step under way. `begun`: the worker runs, or tries to, with what the step asks for."""

    step: Step
    before: WorkerSpec | None
    launch_id: str = ""
    begun: bool = False
    going_back: bool = False


class Rollout:
    """
    Brings the roster to `goal`. Used once.

    Args:
        goal: Every worker there shall be.
        restart: Names of those to be launched anew although nothing changed.
        minimum: By model, how many workers stay available (`planner.due`).
        revision: Names what a worker is started with; equal revisions need no replacement.
        pulse: Beats whenever a worker's status changes.
    """

    def __init__(
        self,
        roster: Roster,
        goal: Sequence[WorkerSpec],
        *,
        pulse: Pulse,
        revision: Callable[[WorkerSpec], str],
        restart: Collection[str] = (),
        minimum: Mapping[str, int] | None = None,
    ) -> None:
        self._roster = roster
        self._goal = {spec.name: spec for spec in goal}
        self._pulse = pulse
        self._revision = revision
        self._minimum = minimum
        self._restart = frozenset(restart)
        self._wanted = [
            Wanted(spec.name, spec.model, revision(spec) + (_RESTARTED if spec.name in self._restart else ""))
            for spec in goal
        ]
        self._run_with = {name: revision(roster.spec(name)) for name in roster.actors}
        self._moves: dict[str, _Move] = {}
        self._halted: set[str] = set()
        self._tried: set[str] = set()

    async def run(self, progress: Progress) -> None:
        """Until every step is done, or no more may be begun after a failure and what was begun has come to an end."""
        async with anyio.create_task_group() as group:
            while True:
                self._judge(group, progress)
                for step in due(self._wanted, self._present(), minimum=self._minimum, halted=self._halted):
                    self._begin(group, step, progress)
                if not self._moves and not self._left():
                    break
                await self._pulse.wait()
        untouched = [
            step.worker
            for step in difference(self._wanted, self._present())
            if step.model in self._halted and step.worker not in self._tried
        ]
        if untouched:
            progress.say(f"not touched: {', '.join(untouched)}")

    def _left(self) -> list[Step]:
        return [step for step in difference(self._wanted, self._present()) if step.model not in self._halted]

    def _present(self) -> list[Present]:
        return [
            Present(name, actor.spec.model, self._run_with[name], actor.status.state, moving=name in self._moves)
            for name, actor in self._roster.actors.items()
        ]

    def _begin(self, group: anyio.abc.TaskGroup, step: Step, progress: Progress) -> None:
        name = step.worker
        self._tried.add(name)
        if step.action is Action.START:
            self._moves[name] = _Move(step, None, begun=True)
            self._run_with[name] = self._target(name)
            self._roster.add(self._goal[name])
            return
        actor = self._roster.actors[name]
        if step.action is Action.STOP:
            self._moves[name] = _Move(step, actor.spec)
            group.start_soon(self._stop, name, progress)
            return
        self._run_with[name] = self._target(name)
        if actor.status.state is WorkerState.STOPPED and actor.spec.static is None:
            self._roster.hold(self._goal[name])
            progress.say(f"{name} is stopped and stays so; its next start uses the new options")
            self._pulse.beat()
            return
        self._moves[name] = _Move(step, actor.spec, launch_id=actor.status.launch_id)
        if name in self._restart:
            self._moves[name].begun = True
            progress.say(f"{name}: out of rotation, restarting")
            self._roster.command(name, WorkerCommand.RESTART)
        else:
            progress.say(f"{name}: out of rotation, starting again with the new options")
            group.start_soon(self._replace, name, self._goal[name])

    def _target(self, name: str) -> str:
        return next(worker.revision for worker in self._wanted if worker.name == name)

    async def _stop(self, name: str, progress: Progress) -> None:
        await self._roster.remove(name)
        del self._moves[name]
        progress.say(f"{name}: stopped")
        self._pulse.beat()

    async def _replace(self, name: str, spec: WorkerSpec) -> None:
        await self._roster.replace(spec)
        self._moves[name].begun = True
        self._moves[name].launch_id = ""
        self._pulse.beat()

    def _judge(self, group: anyio.abc.TaskGroup, progress: Progress) -> None:
        """What has become of the steps under way?"""
        for name, move in list(self._moves.items()):
            if not move.begun:
                continue
            actor = self._roster.actors.get(name)
            if actor is None:  # the gateway is being stopped
                del self._moves[name]
                continue
            status = actor.status
            if status.static:
                progress.say(f"{name}: in use as configured now")
                del self._moves[name]
            elif status.launch_id in ("", move.launch_id):
                continue  # what the step asks for has not begun to run
            elif status.state is WorkerState.READY:
                progress.say(f"{name}: ready{' with the old options again' if move.going_back else ''}")
                del self._moves[name]
            elif status.state in _DOWN:
                self._failed(group, name, move, status.last_failure, progress)
            elif status.state is WorkerState.STOPPED:
                progress.fail(f"{name}: stopped by somebody else meanwhile")
                del self._moves[name]

    def _failed(self, group: anyio.abc.TaskGroup, name: str, move: _Move, failure: str, progress: Progress) -> None:
        if move.going_back:
            progress.fail(f"{name}: does not start with the old options either: {failure}")
            del self._moves[name]
            return
        if move.step.action is Action.START:
            progress.fail(f"{name}: does not start: {failure}")
            del self._moves[name]
            return
        self._halted.add(move.step.model)
        if name in self._restart or move.before is None:
            progress.fail(f"{name}: does not come back: {failure}")
            del self._moves[name]
            return
        progress.fail(f"{name}: does not start with the new options: {failure} It goes back to the old ones")
        self._run_with[name] = self._revision(move.before)
        self._moves[name] = _Move(move.step, move.before, launch_id=self._roster.actors[name].status.launch_id)
        self._moves[name].going_back = True
        group.start_soon(self._replace, name, move.before)
