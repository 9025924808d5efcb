"""The workers' tasks: who there is, and how one comes, goes, or makes room for another of the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import anyio
import anyio.abc

from gateway.workers.actor import Actor, OnChange, WorkerCommand
from gateway.workers.spec import WorkerSpec

MakeActor = Callable[[WorkerSpec, OnChange], Actor]


class Roster:
    """
    Owns every actor and the task it runs in. `run` is the only place where actors run.

    An actor's specification never changes: other options mean another actor under the same name, made when the one
    before has ended.

    Args:
        on_change: Told of every change of a worker's status, and when a worker comes or goes (with its last status).
    """

    def __init__(self, specs: Sequence[WorkerSpec], make: MakeActor, on_change: OnChange) -> None:
        self._make = make
        self._on_change = on_change
        self._actors: dict[str, Actor] = {spec.name: make(spec, on_change) for spec in specs}
        self._over: dict[str, anyio.Event] = {}
        self._held: dict[str, WorkerSpec] = {}
        self.drain_s: float | None = None
        """How long running requests get when a worker is stopped, where it is not the worker's own time any more."""
        self._closing = False
        self._empty = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None

    @property
    def actors(self) -> Mapping[str, Actor]:
        """By name, in configuration order."""
        return MappingProxyType(self._actors)

    async def run(self) -> None:
        """Run every actor, those that come later too, until `shut_down` was called and the last has ended."""
        async with anyio.create_task_group() as group:
            self._group = group
            for name in self._actors:
                self._begin(name)
            self._settle()
            await self._empty.wait()

    def command(self, name: str, command: WorkerCommand) -> None:
        """Pass an operator's command on. A stopped worker that is started takes the specification held for it."""
        held = self._held.pop(name, None) if command in (WorkerCommand.START, WorkerCommand.RESTART) else None
        if held is None or self._group is None:
            self._actors[name].command(command, drain_s=self.drain_s)
        else:
            self._group.start_soon(self.replace, held)

    def hold(self, spec: WorkerSpec) -> None:
        """For the next start or restart that an operator asks for; until then the worker stays as it is."""
        self._held[spec.name] = spec

    def spec(self, name: str) -> WorkerSpec:
        """What the worker runs with, or would if it were started."""
        return self._held.get(name) or self._actors[name].spec

    def add(self, spec: WorkerSpec) -> None:
        """One more worker. Ignored once everything is being shut down."""
        if self._closing:
            return
        assert spec.name not in self._actors, "names are unique"
        actor = self._actors[spec.name] = self._make(spec, self._on_change)
        self._begin(spec.name)
        self._on_change(actor.status)

    async def remove(self, name: str) -> None:
        """Out of rotation, running requests finish, stop; then there is no such worker any more."""
        await self._end(name)
        self._held.pop(name, None)
        gone = self._actors.pop(name)
        self._on_change(gone.status)

    async def replace(self, spec: WorkerSpec) -> None:
        """The worker of that name finishes its requests and ends; then another one starts in its place."""
        self._held.pop(spec.name, None)
        await self._end(spec.name)
        if self._closing:
            return
        actor = self._actors[spec.name] = self._make(spec, self._on_change)
        self._begin(spec.name)
        self._on_change(actor.status)

    def arrange(self, names: Sequence[str]) -> None:
        """Put the workers into the order of the configuration; those that are not in it come last."""
        listed = [name for name in names if name in self._actors]
        rest = [name for name in self._actors if name not in listed]
        self._actors = {name: self._actors[name] for name in (*listed, *rest)}

    def shut_down(self) -> None:
        """Nothing new from now on; `run` returns when every actor has ended (somebody must tell them to)."""
        self._closing = True
        self._settle()

    async def _end(self, name: str) -> None:
        self._actors[name].command(WorkerCommand.SHUTDOWN, drain_s=self.drain_s)
        await self._over[name].wait()

    def _begin(self, name: str) -> None:
        assert self._group is not None, "an actor runs inside `run` only"
        self._over[name] = anyio.Event()
        self._group.start_soon(self._own, self._actors[name], self._over[name])

    async def _own(self, actor: Actor, over: anyio.Event) -> None:
        try:
            await actor.run()
        finally:
            over.set()
            self._settle()

    def _settle(self) -> None:
        if self._closing and all(over.is_set() for over in self._over.values()):
            self._empty.set()
