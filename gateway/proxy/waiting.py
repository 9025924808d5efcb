"""How the one coroutine of an exchange sleeps, is woken, and is told to end."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gateway.proxy.client import ClientSide
from gateway.proxy.limits import Limit, LimitTimer
from gateway.types import Outcome

_T = TypeVar("_T")


class Interrupted(Exception):
    """The exchange must end now; `outcome` says why, `limit` which limit passed."""

    def __init__(self, outcome: Outcome, limit: Limit | None = None) -> None:
        self.outcome = outcome
        self.limit = limit
        super().__init__(outcome)


class Waiting:
    """
    The waiting half of an exchange: one future to sleep on, one reason to end.

    Callbacks call `wake` and `interrupt`; only the coroutine awaits `until` and `sending`. As long as
    `inline` is set there is no coroutine, and whatever happens is told to `inline_wake`.
    """

    __slots__ = (
        "_arm_due",
        "_beat_due",
        "_in_send",
        "_interrupt",
        "_loop",
        "_task",
        "_timer",
        "_waiter",
        "client",
        "inline",
    )

    def __init__(self, client: ClientSide) -> None:
        self.client = client
        self.inline = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._timer: LimitTimer | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._interrupt: Interrupted | None = None
        self._in_send = False
        self._arm_due = False
        self._beat_due = False

    @property
    def in_send(self) -> bool:
        """The coroutine waits for the client to take something."""
        return self._in_send

    @property
    def beat_due(self) -> bool:
        """A heartbeat is about to be sent."""
        return self._beat_due

    @property
    def interrupted(self) -> bool:
        """The exchange must end."""
        return self._interrupt is not None

    @abstractmethod
    def inline_wake(self) -> None:
        """Something has happened to an exchange without a coroutine."""

    @abstractmethod
    async def _heartbeat(self) -> None:
        """Send a heartbeat to the client."""

    def wake(self) -> None:
        """Something has happened; called by callbacks."""
        if self.inline:
            self.inline_wake()
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Sleep until `ready()`; raises Interrupted when the exchange must end first."""
        while True:
            if self._interrupt is not None:
                raise self._interrupt
            if ready():
                return
            if self._beat_due:
                self._beat_due = False
                await self._heartbeat()
                continue
            if self._arm_due and self._timer is not None:
                self._arm_due = False
                self._timer.arm()
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def sending(self, send: Awaitable[None]) -> None:
        """Send to the client; a send that blocks is broken off when the exchange must end."""
        self._in_send = True
        try:
            await send
        except asyncio.CancelledError:
            if self._interrupt is None or self._task is None:
                raise
            self._task.uncancel()
            raise self._interrupt from None
        finally:
            self._in_send = False
        if self._interrupt is not None and not self.client.complete:
            raise self._interrupt

    def interrupt(self, outcome: Outcome, limit: Limit | None = None) -> None:
        """End the exchange; the first reason counts."""
        if self._interrupt is None:
            self._interrupt = Interrupted(outcome, limit)
            if self._in_send and self._task is not None:
                self._task.cancel()
            else:
                self.wake()

    def take_interrupt(self, error: BaseException, limit: Limit) -> bool:
        """True iff `error` is the interruption by `limit`, which is over then: another attempt may follow."""
        if isinstance(error, Interrupted) and error.limit is limit:
            self._interrupt = None
            return True
        return False
