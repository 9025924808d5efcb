"""
The gateway processes together: one for each listening socket, and those that were replaced and finish their streams.

A replacement is started on the same descriptor while the process before it still accepts, and only when the new one
has said that it listens does the old one stop accepting. So a change of settings refuses nobody and cuts no stream.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import anyio.abc

from gateway.clock import Clock
from gateway.control.gateway_process import (
    EXIT_GRACE_S,
    GatewayProcessBroken,
    GatewaySlot,
    SlotEvents,
    SlotPlan,
)
from gateway.control.listeners import Listeners
from gateway.errors import GatewayError
from gateway.fleet import InFlightBoard
from gateway.fleet.board import ROWS
from gateway.log import EventLog
from gateway.messages import ToSupervisor
from gateway.metrics import Board
from gateway.types import FleetSnapshot

REPLACEMENT_S = 60.0
"""A new gateway process that does not listen by then is not going to."""
SETTLE_S = 2.0
"""From the last new connection that a socket may get to the end of its handshakes."""
EMPTY_S = 10.0
"""A process that has not accepted by then what waits on its socket is not going to."""
STOP_ACCEPTING_S = 0.5
"""For processes that were told to leave to stop listening, before their socket is closed under them."""
LOOK_S = 0.05


class ReplacementFailed(GatewayError):
    """New gateway processes did not come up; the old ones go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPlan:
    """
    How many gateway processes there are, and what they are started with; see `SlotPlan`.

    `leave_timeout_s`: what a replaced process gets to finish its streams. It costs little to let them: longer than
    `drain_timeout_s`, after which the machine may go down.
    """

    processes: int
    argv: Sequence[str]
    settings_json: str
    keys_file: str
    workers: tuple[tuple[str, str], ...]
    drain_timeout_s: float
    leave_timeout_s: float
    new_board: Callable[[], Board]


class Front:
    """
    Owns all gateway processes. `run` runs them; the other methods leave a wish or read.

    Args:
        events: Told with a number that no other process of this front has or had.
        in_flight: Where all processes count what they have in flight.
        on_broken: A process of a first start never came up.
    """

    def __init__(
        self,
        events: SlotEvents,
        in_flight: InFlightBoard,
        clock: Clock,
        log: EventLog,
        on_broken: Callable[[GatewayProcessBroken], None],
    ) -> None:
        self._events = events
        self._in_flight = in_flight
        self._clock = clock
        self._log = log
        self._on_broken = on_broken
        self._numbers = itertools.count()
        self._listeners = Listeners(())
        self._slots: list[GatewaySlot] = []
        self._leaving: list[GatewaySlot] = []
        self._group: anyio.abc.TaskGroup | None = None
        self._running = 0
        self._past_crashes = 0
        self._leave_timeout_s = 0.0
        self._empty = anyio.Event()
        self._heard = anyio.Event()
        self._newest: FleetSnapshot | None = None
        self._ending = False

    @property
    def slots(self) -> Sequence[GatewaySlot]:
        """The current process of each listening socket."""
        return self._slots

    @property
    def crashes(self) -> int:
        """Times a process ended although nobody had asked it to, those of replaced processes included."""
        return self._past_crashes + sum(slot.restarts for slot in (*self._slots, *self._leaving))

    @property
    def leaving(self) -> Sequence[GatewaySlot]:
        """Processes that were replaced and finish their streams."""
        return self._leaving

    @property
    def serving(self) -> bool:
        """Some process listens."""
        return any(slot.serving for slot in self._slots)

    def open(self, listeners: Listeners, plan: FrontPlan) -> None:
        """Say which sockets there are and what the processes start with; nothing runs before `run`."""
        assert len(listeners) == plan.processes, "each process has a socket of its own"
        self._listeners = listeners
        self._leave_timeout_s = plan.leave_timeout_s
        self._slots = [self._slot(index, plan) for index in range(plan.processes)]

    async def run(self) -> None:
        """Keep the processes running until `drain` or `kill` has ended all of them."""
        async with anyio.create_task_group() as group:
            self._group = group
            for slot in self._slots:
                self._begin(slot, self._on_broken)
            await self._empty.wait()

    def publish(self, fleet: FleetSnapshot) -> None:
        """Give all processes, those that leave included, this snapshot; and the next ones too."""
        self._newest = fleet
        for slot in (*self._slots, *self._leaving):
            slot.publish(fleet)

    async def replace(self, plan: FrontPlan) -> None:
        """
        New processes, as many as the plan says, then the old ones finish their streams (`leave_timeout_s` of theirs).

        Raises ReplacementFailed; the old ones go on as if nothing had been then.
        """
        assert self._group is not None, "there is nothing to replace before `run`"
        if self._running + plan.processes > ROWS:
            raise ReplacementFailed(
                f"{self._running} gateway processes run, most of them replaced ones that finish their streams, and "
                f"there may be {ROWS}; wait until `gateway status` shows fewer, or end some with `kill PID`"
            )
        before = len(self._slots)
        self._listeners.grow(plan.processes)
        fresh = [self._slot(index, plan) for index in range(plan.processes)]
        if why := await self._failure(fresh):
            for slot in fresh:
                self._give_up(slot, plan.leave_timeout_s)
            self._listeners.close_from(before)
            raise ReplacementFailed(f"the new gateway processes did not come up, the old ones go on: {why}")
        old, self._slots = self._slots, fresh
        leave_s, self._leave_timeout_s = self._leave_timeout_s, plan.leave_timeout_s
        self._leaving += old
        self._steer()
        for slot in old[: plan.processes]:
            self._replaced(slot, leave_s)
        if surplus := old[plan.processes :]:
            await self._close_sockets(surplus, leave_s)
        if self._ending:
            for slot in fresh:
                slot.drain(0)

    async def _failure(self, fresh: Sequence[GatewaySlot]) -> str:
        """Run these until all serve; why they do not, "" when they do."""
        failures: list[GatewayProcessBroken] = []

        def broken(error: GatewayProcessBroken) -> None:
            failures.append(error)
            self._notify()

        for slot in fresh:
            if self._newest is not None:
                slot.publish(self._newest)
            self._begin(slot, broken)
        with anyio.move_on_after(REPLACEMENT_S):
            while not failures and not self._ending and not all(slot.serving for slot in fresh):
                await self._heard.wait()
        if all(slot.serving for slot in fresh):
            return ""
        return str(failures[0]) if failures else f"they did not listen within {REPLACEMENT_S:g} s"

    def _give_up(self, slot: GatewaySlot, deadline_s: float) -> None:
        """One of a replacement that failed; where others came up, it may have clients already."""
        if slot.serving and slot.slot < len(self._slots) and not self._ending:
            self._leaving.append(slot)
            self._replaced(slot, deadline_s)
        else:
            slot.kill()

    def _replaced(self, slot: GatewaySlot, deadline_s: float) -> None:
        """Another process accepts on the same socket, or none will on this one."""
        assert self._group is not None
        slot.drain(deadline_s, replaced=True)
        self._group.start_soon(self._see_off, slot, deadline_s)

    async def _close_sockets(self, surplus: Sequence[GatewaySlot], leave_s: float) -> None:
        """
        These processes' sockets go too. They get no new connection any more; what they have is accepted first.
        """
        count = surplus[0].slot
        with anyio.move_on_after(EMPTY_S):
            await anyio.sleep(SETTLE_S)
            while self._listeners.waiting_from(count):  # noqa: ASYNC110 nobody tells when a queue is empty
                await anyio.sleep(LOOK_S)
        for slot in surplus:
            self._replaced(slot, leave_s)
        await anyio.sleep(STOP_ACCEPTING_S)
        self._listeners.close_from(count)

    def drain(self, deadline_s: float) -> None:
        """Stop accepting, finish what runs within `deadline_s`; `run` returns then. May be called again, shorter."""
        self._ending = True
        self._notify()
        for slot in (*self._slots, *self._leaving):
            slot.drain(deadline_s)

    def kill(self) -> None:
        """End all processes now."""
        self._ending = True
        self._notify()
        for slot in (*self._slots, *self._leaving):
            slot.kill()

    def _slot(self, index: int, plan: FrontPlan) -> GatewaySlot:
        return GatewaySlot(
            SlotPlan(
                slot=index,
                listener=self._listeners.of(index),
                argv=plan.argv,
                settings_json=plan.settings_json,
                keys_file=plan.keys_file,
                workers=plan.workers,
                drain_timeout_s=plan.drain_timeout_s,
                new_board=plan.new_board,
                in_flight=self._in_flight,
            ),
            _Numbered(next(self._numbers), self._events, self._notify),
            self._clock,
            self._log,
        )

    def _begin(self, slot: GatewaySlot, on_broken: Callable[[GatewayProcessBroken], None]) -> None:
        assert self._group is not None
        self._running += 1
        self._group.start_soon(self._keep, slot, on_broken)

    async def _keep(self, slot: GatewaySlot, on_broken: Callable[[GatewayProcessBroken], None]) -> None:
        try:
            await slot.run()
        except GatewayProcessBroken as exc:
            on_broken(exc)
        finally:
            self._running -= 1
            if slot in self._leaving:
                self._leaving.remove(slot)
                self._past_crashes += slot.restarts
            self._notify()
            if not self._running:
                self._empty.set()

    async def _see_off(self, slot: GatewaySlot, deadline_s: float) -> None:
        """A process that does not leave by its deadline is of no use to anybody."""
        with anyio.move_on_after(deadline_s + EXIT_GRACE_S):
            while slot in self._leaving:
                await self._heard.wait()
        slot.kill()

    def _steer(self) -> None:
        """Clients are not sent to a process that has died; if all have, they wait for the next one in any slot."""
        chosen = [slot.slot for slot in self._slots if slot.takes_clients]
        self._listeners.steer(chosen or range(len(self._slots)))

    def _notify(self) -> None:
        if self._slots:
            self._steer()
        heard, self._heard = self._heard, anyio.Event()
        heard.set()


class _Numbered:
    """Passes a slot's events on under a number of its own: two processes may share a slot for a while."""

    def __init__(self, number: int, events: SlotEvents, notify: Callable[[], None]) -> None:
        self._number = number
        self._events = events
        self._notify = notify

    def message(self, slot: int, message: ToSupervisor) -> None:
        self._events.message(self._number, message)
        self._notify()

    def gone(self, slot: int, board: Board) -> None:
        self._events.gone(self._number, board)
        self._notify()
