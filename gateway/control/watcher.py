"""Who is told how the fleet is doing: the supervisor speaks to a `Watcher` and knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.workers.status import WorkerStatus


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the running gateway answers, as URLs without a path."""

    public: str
    admin: str


class Watcher(Protocol):
    """Somebody who is told how the fleet is doing. Every call is quick and does not block."""

    def listening(self, addresses: Addresses) -> None:
        """The sockets are open; workers are about to start."""
        ...

    def changed(self, statuses: Sequence[WorkerStatus]) -> None:
        """At least one worker's status is new."""
        ...

    def serving(self) -> None:
        """A gateway process listens and every model that can have a ready worker has one."""
        ...

    def said(self, line: str) -> None:
        """A sentence about something an operator asked for, such as a reload."""
        ...

    def stopping(self, reason: str) -> None:
        """The gateway was asked to stop; running requests finish first."""
        ...

    def stopped(self, took_s: float, survivors: Sequence[int]) -> None:
        """The end: everything that was started is gone, except pids in `survivors`, which cannot be killed."""
        ...

    async def run(self) -> None:
        """Whatever the watcher does over time, such as a line every ten seconds; cancelled at the end."""
        ...


class Silence:
    """A watcher that says nothing."""

    def listening(self, addresses: Addresses) -> None: ...

    def changed(self, statuses: Sequence[WorkerStatus]) -> None: ...

    def serving(self) -> None: ...

    def said(self, line: str) -> None: ...

    def stopping(self, reason: str) -> None: ...

    def stopped(self, took_s: float, survivors: Sequence[int]) -> None: ...

    async def run(self) -> None: ...
