"""What others may tell a worker's task; it alone reads here, and decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import anyio

Answer = TypeVar("Answer")


class WorkerCommand(StrEnum):
    """
    What an operator or the supervisor may ask of a worker.

    | command  | effect                                                                                           |
    |----------|--------------------------------------------------------------------------------------------------|
    | START    | a stopped, failed or waiting worker starts; a draining one goes back into rotation               |
    | DRAIN    | out of rotation, running requests finish, the process stays (DRAINING) until START or STOP        |
    | STOP     | out of rotation, running requests finish or the drain time passes, then the process is stopped    |
    | RESTART  | STOP, then START                                                                                 |
    | SHUTDOWN | STOP, and the owning task ends                                                                   |

    A second STOP, RESTART or SHUTDOWN while draining ends the wait. A starting worker is killed, not asked.
    """

    START = "start"
    DRAIN = "drain"
    STOP = "stop"
    RESTART = "restart"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Order:
    """A command with its drain time in seconds (None: the configured one)."""

    command: WorkerCommand
    drain_s: float | None = None

    @property
    def ends(self) -> bool:
        """The process shall go."""
        return self.command in (WorkerCommand.STOP, WorkerCommand.RESTART, WorkerCommand.SHUTDOWN)


@dataclass(frozen=True, slots=True)
class Answered(Generic[Answer]):
    """A question that was asked to the end."""

    value: Answer


class Inbox:
    """
    Orders, and the signals that wake the owner.

    *Urgent* (an order waits, the process has exited) breaks off whatever the owner waits for, an unanswered probe
    included. A *nudge* (something worth a look) only ends a pause.
    """

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._sleep = sleep
        self._orders: deque[Order] = deque()
        self._exited = False
        self._urgent = anyio.Event()
        self._nudged = anyio.Event()
        self._ending = anyio.Event()

    def put(self, order: Order) -> None:
        """Queue an order."""
        self._orders.append(order)
        self._urgent.set()
        if order.ends:
            self._ending.set()

    def process_exited(self) -> None:
        """The worker's process is gone."""
        self._exited = True
        self._urgent.set()

    def nudge(self) -> None:
        """Something is worth a look before the pause ends."""
        self._nudged.set()

    def forget_exit(self) -> None:
        """The process that exited is dealt with."""
        self._exited = False
        self._settle()

    def take(self) -> Order | None:
        """The oldest order that waits."""
        order = self._orders.popleft() if self._orders else None
        self._settle()
        return order

    def order_waits(self) -> bool:
        """Does any order wait?"""
        return bool(self._orders)

    def ending_waits(self) -> bool:
        """Does an order wait that wants the process gone?"""
        return self._ending.is_set()

    async def ending(self) -> None:
        """Wait until such an order waits."""
        await self._ending.wait()

    async def next(self) -> Order:
        """Wait for an order."""
        while (order := self.take()) is None:
            await self._urgent.wait()
        return order

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until something urgent or a nudge."""
        if not self._nudged.is_set():
            await first(lambda: self._sleep(seconds), self._urgent.wait, self._nudged.wait)
        self._nudged = anyio.Event()

    async def unless_urgent(self, question: Callable[[], Awaitable[Answer]]) -> Answered[Answer] | None:
        """Ask, but break off when something urgent comes: then None. Errors of the question are raised."""
        answer: Answered[Answer] | None = None
        error: Exception | None = None

        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await self._urgent.wait()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                answer = Answered(await question())
            except Exception as exc:
                # Kept and raised below: out of the task group it would come wrapped in an ExceptionGroup.
                error = exc
            group.cancel_scope.cancel()
        if error is not None:
            raise error
        return answer

    def _settle(self) -> None:
        if self._ending.is_set() and not any(order.ends for order in self._orders):
            self._ending = anyio.Event()
        if not self._orders and not self._exited and self._urgent.is_set():
            self._urgent = anyio.Event()


async def first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when one of them does; the others are cancelled."""
    async with anyio.create_task_group() as group:

        async def one(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            group.cancel_scope.cancel()

        for wait in waits:
            group.start_soon(one, wait)


async def finished_within(
    sleep: Callable[[float], Awaitable[None]], seconds: float, work: Callable[[], Awaitable[object]]
) -> bool:
    """Did `work` finish before `sleep(seconds)` did? Whichever is later is cancelled."""
    finished = False

    async def note() -> None:
        nonlocal finished
        await work()
        finished = True

    await first(note, lambda: sleep(seconds))
    return finished
