"""The one task that owns a worker: everybody else sends it commands and observations and reads its status."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from gateway.types import WorkerView
from gateway.workers.services import WorkerServices
from gateway.workers.spec import WorkerSpec
from gateway.workers.status import WorkerStatus


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


class Actor(Protocol):
    """What `control` sees of a worker, launched or static."""

    @property
    def spec(self) -> WorkerSpec: ...

    @property
    def status(self) -> WorkerStatus:
        """The latest status; replaced, never changed."""
        ...

    @property
    def view(self) -> WorkerView:
        """The same for gateway processes, with the key; a worker without a process has an empty address."""
        ...

    async def run(self) -> None:
        """
        Own the worker: start it, keep it running, obey commands; returns after SHUTDOWN.

        Cancelled, it kills the worker's whole session before it lets the cancellation go on.
        """
        ...

    def command(self, command: WorkerCommand, *, drain_s: float | None = None) -> None:
        """Queue a command. `drain_s` replaces `drain_timeout_s` of the configuration for this one."""
        ...

    def report_failure(self, kind: str, detail: str, *, launch_id: str | None = None) -> None:
        """A gateway process saw this worker fail: it is probed at once. Of another launch: ignored."""
        ...

    def report_load(self, in_flight: int, silent_s: float | None, *, launch_id: str | None = None) -> None:
        """
        About once a second: requests in flight over all gateway processes, and seconds since the last byte of any.

        Without reports for five seconds nobody is taken to use the worker.
        """
        ...


OnChange = Callable[[WorkerStatus], None]


class WorkerActor:
    """Owns one launched worker (see `Actor` for the contract of each method)."""

    def __init__(self, spec: WorkerSpec, services: WorkerServices, on_change: OnChange) -> None:
        raise NotImplementedError


class StaticWorkerActor:
    """Owns our view of a worker that somebody else runs: probes only, never a signal (contract: `Actor`)."""

    def __init__(self, spec: WorkerSpec, services: WorkerServices, on_change: OnChange) -> None:
        raise NotImplementedError


def actor_for(spec: WorkerSpec, services: WorkerServices, on_change: OnChange) -> Actor:
    """The actor that suits the specification."""
    kind: Callable[[WorkerSpec, WorkerServices, OnChange], Actor] = StaticWorkerActor if spec.static else WorkerActor  # type: ignore[assignment]
    return kind(spec, services, on_change)
