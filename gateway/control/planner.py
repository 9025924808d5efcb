"""
Which workers to start, replace or stop, and which of that may happen now: desired minus actual, as pure functions.

`difference` is everything that has to happen; `due` is the part of it that may happen at this moment without taking a
model below the number of workers that must stay available. Whoever carries the steps out asks `due` again after every
change, so nothing here remembers anything: what was started and is not finished is told by `Present.moving`.

A worker is *available* when it is READY and no step of it is under way. Of a model's workers that could be available
(neither stopped, nor failed, nor drained) one may be missing, or as many as `minimum` leaves. A model that has a single
worker has none while that is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.types import WorkerState

_OUT_OF_SERVICE = frozenset({WorkerState.STOPPED, WorkerState.FAILED, WorkerState.DRAINING})
"""States that an operator or a fault has made final: such a worker will not become available by itself."""


class Action(StrEnum):
    """What happens to a worker."""

    START = "start"
    REPLACE = "replace"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Step:
    """One action on one worker."""

    action: Action
    worker: str
    model: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A worker that shall run; `revision` names what it is started with, and is compared for equality only."""

    name: str
    model: str
    revision: str


@dataclass(frozen=True, slots=True)
class Present:
    """
    A worker that there is. `revision`: what it was last told to run with.

    `moving`: a step of it has begun and has not led to READY, nor to the end of the worker, yet.
    """

    name: str
    model: str
    revision: str
    state: WorkerState
    moving: bool = False


def difference(wanted: Sequence[Wanted], present: Sequence[Present]) -> tuple[Step, ...]:
    """Every step from `present` to `wanted`: new workers first, then replacements, then those that are to go."""
    there = {worker.name: worker for worker in present}
    names = {worker.name for worker in wanted}
    starts = [Step(Action.START, worker.name, worker.model) for worker in wanted if worker.name not in there]
    replacements = [
        Step(Action.REPLACE, worker.name, worker.model)
        for worker in wanted
        if worker.name in there and there[worker.name].revision != worker.revision
    ]
    stops = [Step(Action.STOP, worker.name, worker.model) for worker in present if worker.name not in names]
    return (*starts, *replacements, *stops)


def due(
    wanted: Sequence[Wanted],
    present: Sequence[Present],
    *,
    minimum: Mapping[str, int] | None = None,
    halted: Collection[str] = (),
) -> tuple[Step, ...]:
    """
    The steps that may begin now.

    Workers that serve nobody are replaced before those that serve. At most as many replacements of a model are under
    way at a time as may be missing, serving or not, so that options with which no worker starts stop at the first.

    Args:
        minimum: By model, how many workers must stay available; all but one where it says nothing, and never more
            than that, because then nothing could ever be done.
        halted: Models of which nothing more shall be begun.
    """
    there = {worker.name: worker for worker in present}
    fleets = {model: _Fleet(model, wanted, present, (minimum or {}).get(model)) for model in _models(wanted, present)}
    steps = difference(wanted, present)
    # Stable: within the same urgency the order of the configuration holds.
    ordered = sorted(steps, key=lambda step: step.worker in there and there[step.worker].state is WorkerState.READY)
    begun: list[Step] = []
    for step in ordered:
        worker = there.get(step.worker)
        if step.model in halted or (worker is not None and worker.moving):
            continue
        if fleets[step.model].allows(step.action, worker):
            begun.append(step)
    return tuple(begun)


class _Fleet:
    """The workers of one model, and how many more of them may be taken away in this round."""

    def __init__(self, model: str, wanted: Sequence[Wanted], present: Sequence[Present], minimum: int | None) -> None:
        mine = [worker for worker in present if worker.model == model]
        kept = {worker.name for worker in wanted if worker.model == model}
        self._wanted = bool(kept)
        # Workers that are to go are no reason to wait, and no help either once the others are there.
        alive = [worker for worker in mine if worker.name in kept and (worker.moving or _may_serve(worker))]
        at_most = max(0, len(alive) - 1)
        self._floor = at_most if minimum is None else min(max(0, minimum), at_most)
        self._available = sum(worker.state is WorkerState.READY and not worker.moving for worker in mine)
        self._kept_available = sum(
            worker.state is WorkerState.READY and not worker.moving for worker in mine if worker.name in kept
        )
        replacing = sum(worker.moving for worker in mine if worker.name in kept)
        self._replacements = max(1, len(alive) - self._floor) - replacing

    def allows(self, action: Action, worker: Present | None) -> bool:
        """May the step begin? Counts it if so."""
        if action is Action.START or worker is None:
            return True
        serves = worker.state is WorkerState.READY
        if action is Action.STOP:
            if serves and self._wanted and self._kept_available < max(1, self._floor):
                return False
        elif self._replacements < 1 or (serves and self._available - 1 < self._floor):
            return False
        if action is Action.REPLACE:
            self._replacements -= 1
            self._kept_available -= serves
        self._available -= serves
        return True


def _may_serve(worker: Present) -> bool:
    return worker.state not in _OUT_OF_SERVICE


def _models(wanted: Sequence[Wanted], present: Sequence[Present]) -> set[str]:
    return {worker.model for worker in wanted} | {worker.model for worker in present}
