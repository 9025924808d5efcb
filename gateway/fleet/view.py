"""A gateway process's view of the fleet: the latest snapshot and what this process has in flight on each worker."""

from __future__ import annotations

import anyio

from gateway.clock import Clock
from gateway.fleet.breaker import BreakerLimits
from gateway.fleet.member import Member, WorkerGauges
from gateway.fleet.row import BoardRow
from gateway.messages import WorkerLoad
from gateway.types import CircuitState, FleetSnapshot, ModelView, WorkerState, WorkerView

COMING_BACK_WITHIN_S = 120.0
"""A worker that was READY so long ago and is on its way back is worth waiting for."""

_ON_ITS_WAY = frozenset({WorkerState.STARTING, WorkerState.BACKOFF, WorkerState.UNHEALTHY, WorkerState.STOPPING})
"""
States that lead to READY by themselves after a crash, a hang or a restart. Not DRAINING, STOPPED and FAILED, which an
operator or a fault has made final. STOPPING may end either way; its next snapshot tells.
"""


class FleetView:
    """
    The latest snapshot, replaced as a whole, and the members behind it.

    A member lives as long as its launch: a snapshot with another launch id brings a new member with zero counts, and
    leases on the old one end in peace. Single task use: it is only touched from the event loop's thread.

    Args:
        row: This process's row in the board that all gateway processes share; None: it is alone.
    """

    def __init__(
        self,
        clock: Clock,
        gauges: WorkerGauges | None = None,
        limits: BreakerLimits | None = None,
        row: BoardRow | None = None,
    ) -> None:
        self.snapshot = FleetSnapshot(version=-1, models=(), workers=())
        self._clock = clock
        self._gauges = gauges
        self._limits = limits if limits is not None else BreakerLimits()
        self._row = row
        self._members: dict[str, Member] = {}
        self._by_model: dict[str, tuple[Member, ...]] = {}
        self._retired: list[Member] = []
        self._by_name: dict[str, ModelView] = {}
        self._permits: dict[str, int] = {}
        self._changed = anyio.Event()
        self._drain = False

    @property
    def draining(self) -> bool:
        """True once no new work may be accepted: this process was told so, or the whole fleet drains."""
        return self._drain or self.snapshot.draining

    def drain(self) -> None:
        """Accept no new work from now on; those who wait in line are turned away."""
        self._drain = True
        self._notify()

    def apply(self, snapshot: FleetSnapshot) -> bool:
        """Take a snapshot over; False if it is not newer than the current one."""
        if snapshot.version <= self.snapshot.version:
            return False
        self.snapshot = snapshot
        members = {worker.name: self._member(worker) for worker in snapshot.workers}
        for name, member in self._members.items():
            if members.get(name) is not member:
                self._retire(member, gone=name not in members)
        self._members = members
        by_model: dict[str, list[Member]] = {model.name: [] for model in snapshot.models}
        for member in members.values():
            by_model.setdefault(member.view.model, []).append(member)
        self._by_model = {model: tuple(members) for model, members in by_model.items()}
        by_name = {alias: model for model in snapshot.models for alias in model.aliases}
        self._by_name = by_name | {model.name: model for model in snapshot.models}
        self._permits = {model.name: model.max_in_flight for model in snapshot.models if model.max_in_flight >= 0}
        self._retired = [member for member in self._retired if member.in_flight]
        self._notify()
        return True

    def limit(self, model: str, default: int | None) -> int | None:
        """How many attempts each worker of a model may have in flight, None for any number; `default`: if not told."""
        told = self._permits.get(model)
        return default if told is None else told or None

    def resolve(self, name: str) -> ModelView | None:
        """The model that a name or alias means."""
        return self._by_name.get(name)

    def members(self, model: str) -> tuple[Member, ...]:
        """The workers of a model, in the snapshot's order."""
        return self._by_model.get(model, ())

    def member(self, worker: str) -> Member | None:
        """A worker by its name."""
        return self._members.get(worker)

    @property
    def in_flight(self) -> int:
        """Attempts in flight on all launches, those already replaced included. Zero at idle."""
        return sum(member.in_flight for member in (*self._members.values(), *self._retired))

    def loads(self) -> tuple[WorkerLoad, ...]:
        """What this process has in flight, launch by launch; idle workers are included with zero."""
        if self._row is not None:
            self._row.look()
        now_s = self._clock.monotonic()
        retired = (member for member in self._retired if member.in_flight)
        return tuple(member.load(now_s) for member in (*self._members.values(), *retired))

    @property
    def alone(self) -> bool:
        """No other gateway process has a row beside ours."""
        return self._row is None or not self._row.others()

    def looked(self, now_s: float) -> None:
        """Whoever waits in this process has just looked for permits."""
        if self._row is not None:
            self._row.looked(int(now_s * 1000))

    def serving(self, model: str) -> bool:
        """Whether requests for a model can be taken: a worker is READY, or worth waiting for (decision 14)."""
        members = self.members(model)
        return any(member.view.state is WorkerState.READY for member in members) or self.coming(model)

    @property
    def ready(self) -> bool:
        """Whether this process may get traffic: it has a snapshot, is not draining, and serves every model."""
        snapshot = self.snapshot
        return (
            bool(snapshot.models) and not self.draining and all(self.serving(model.name) for model in snapshot.models)
        )

    def coming(self, model: str) -> bool:
        """Whether a worker of the model is on its way back to READY."""
        return any(self._comes_back(member.view) for member in self.members(model))

    async def wait_for_snapshot(self) -> None:
        """Wait for the first snapshot. Before it every model is unknown: who listens earlier answers 404 to all."""
        while self.snapshot.version < 0:
            await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _comes_back(self, worker: WorkerView) -> bool:
        if worker.state not in _ON_ITS_WAY or worker.was_ready_at_s is None:
            return False
        return self._clock.monotonic() < worker.was_ready_at_s + COMING_BACK_WITHIN_S

    def _member(self, worker: WorkerView) -> Member:
        present = self._members.get(worker.name)
        if present is not None and present.view.launch_id == worker.launch_id:
            present.renew(worker)
            return present
        return Member(worker, self._limits, self._gauges, self._row)

    def _retire(self, member: Member, *, gone: bool) -> None:
        if gone and self._gauges is not None:
            self._gauges.worker_in_flight(member.view.name, 0)
            self._gauges.worker_circuit(member.view.name, CircuitState.CLOSED)
        member.replaced = True
        if member.in_flight:
            self._retired.append(member)
