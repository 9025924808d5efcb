"""The one task that owns a worker: everybody else sends it commands and observations and reads its status."""

from __future__ import annotations

from typing import Protocol

from gateway.types import WorkerState, WorkerView
from gateway.workers.adoption import Adoption
from gateway.workers.backoff import Failures, after_fall
from gateway.workers.board import OnChange
from gateway.workers.inbox import Order, WorkerCommand
from gateway.workers.launch import Ending, LaunchRun
from gateway.workers.lifecycle import LifeEvent
from gateway.workers.owner import WorkerOwner
from gateway.workers.services import WorkerServices
from gateway.workers.spec import WorkerSpec
from gateway.workers.static import StaticWorkerActor
from gateway.workers.status import WorkerStatus

__all__ = ["Actor", "OnChange", "StaticWorkerActor", "WorkerActor", "WorkerCommand", "actor_for"]

REQUESTED = "requested"
_START = Order(WorkerCommand.START)


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

        Without reports for five seconds nobody is taken to use the worker. Of another launch: ignored.
        """
        ...


class WorkerActor(WorkerOwner):
    """Owns one launched worker (`Actor` has the contract of each method)."""

    def __init__(
        self, spec: WorkerSpec, services: WorkerServices, on_change: OnChange, adopted: Adoption | None = None
    ) -> None:
        super().__init__(spec, services, on_change)
        self._adopted = adopted
        self._launch: LaunchRun | None = None
        self._failures = Failures()
        self._restart_reason = ""

    def report_failure(self, kind: str, detail: str, *, launch_id: str | None = None) -> None:
        if self._launch is not None and self._launch.serving is not None and self._is_current(launch_id):
            self._launch.serving.report_failure()

    def report_load(self, in_flight: int, silent_s: float | None, *, launch_id: str | None = None) -> None:
        if self._launch is not None and self._launch.serving is not None and self._is_current(launch_id):
            self._launch.serving.report_load(in_flight, silent_s)

    async def run(self) -> None:
        order = _START
        while order.command is not WorkerCommand.SHUTDOWN:
            if order.command in (WorkerCommand.START, WorkerCommand.RESTART):
                order = await self._launch_once() or await self._inbox.next()
            else:
                self._rest()
                order = await self._inbox.next()
            if order.command is WorkerCommand.START and order is not _START:
                # A person who starts a worker has changed something: it gets a clean record.
                self._failures = Failures()
        self._rest()

    async def _launch_once(self) -> Order | None:
        """One launch, and the pause after it; what to do next, None to wait for an order."""
        if self._restart_reason:
            self._board.count_restart(self._restart_reason)
            self._restart_reason = ""
        adopted, self._adopted = self._adopted, None
        self._launch = LaunchRun(self._spec, self._services, self._board, self._inbox, adopted)
        try:
            ending = await self._launch.run()
        except BaseException:
            self._board.follow(LifeEvent.GONE)
            raise
        finally:
            self._launch = None
        if ending.order is None:
            return await self._after_fall(ending)
        sentence = ending.failure.sentence if ending.failure else self._board.status.last_failure
        self._board.follow(LifeEvent.GONE, last_failure=sentence)
        if ending.order.command is WorkerCommand.RESTART:
            self._restart_reason = REQUESTED
            return ending.order
        return ending.order if ending.order.command is WorkerCommand.SHUTDOWN else None

    async def _after_fall(self, ending: Ending) -> Order | None:
        failure = ending.failure
        assert failure is not None, "a launch ends by an order or by a failure"
        verdict = after_fall(
            self._failures,
            served_s=ending.served_s,
            permanent=failure.permanent,
            watch=self._spec.watch,
            random=self._services.random,
        )
        self._failures = verdict.failures
        self._restart_reason = failure.reason
        if verdict.pause_s is None:
            self._board.follow(LifeEvent.GONE_GIVE_UP, last_failure=self._given_up(failure.sentence))
            return None
        self._board.follow(LifeEvent.GONE_RETRY, last_failure=failure.sentence)
        due_s = self._services.clock.monotonic() + verdict.pause_s
        while (order := self._inbox.take()) is None:
            left_s = due_s - self._services.clock.monotonic()
            if left_s <= 0:
                return _START
            await self._inbox.pause(left_s)
        return order

    def _given_up(self, sentence: str) -> str:
        if self._failures.in_row < self._spec.watch.max_fast_failures:
            return sentence
        return (
            f"{sentence} Given up after {self._failures.in_row} failures in a row; when it is mended, "
            f"`gateway workers start {self._spec.name}` tries again."
        )

    def _rest(self) -> None:
        """A worker without a process that waits or has failed is stopped now."""
        if self._board.state is not WorkerState.STOPPED:
            self._board.follow(LifeEvent.END)

    def _is_current(self, launch_id: str | None) -> bool:
        return launch_id is None or launch_id == self._board.status.launch_id


def actor_for(
    spec: WorkerSpec, services: WorkerServices, on_change: OnChange, adopted: Adoption | None = None
) -> Actor:
    """The actor that suits the specification; with `adopted` its first launch is one that already runs."""
    if spec.static is not None:
        return StaticWorkerActor(spec, services, on_change)
    return WorkerActor(spec, services, on_change, adopted)
