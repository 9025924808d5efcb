"""One attempt's claim on one worker."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from gateway.clock import Clock
from gateway.fleet.member import Member
from gateway.messages import WorkerFailure
from gateway.types import RetryReason, WorkerView


class WorkerLease:
    """
    Counts an attempt in flight from `__enter__` to `__exit__` (`proxy.interfaces.Lease`).

    Entering twice is a programming error. Leaving twice counts once. A lease that was never entered counts nothing,
    unless it was held: then it counts from there on, and must be left.
    """

    __slots__ = (
        "_clock",
        "_entered",
        "_epoch",
        "_judged",
        "_left",
        "_member",
        "_on_failure",
        "_on_release",
        "policy",
        "reason",
        "worker",
    )

    def __init__(
        self,
        member: Member,
        policy: str,
        reason: str,
        clock: Clock,
        on_failure: Callable[[WorkerFailure], None],
        on_release: Callable[[], None] | None = None,
    ) -> None:
        self.worker: WorkerView = member.view
        self.policy = policy
        self.reason = reason
        self._member = member
        self._clock = clock
        self._on_failure = on_failure
        self._on_release = on_release
        self._entered = False
        self._epoch: int | None = None
        self._judged = False
        self._left = False

    def hold(self) -> None:
        """Count the attempt from now on, although it begins a moment later."""
        if self._epoch is not None:
            raise RuntimeError(f"the lease on {self.worker.name} is held or was entered already")
        self._epoch = self._member.enter(self._clock.monotonic())

    def __enter__(self) -> WorkerLease:
        if self._entered or self._left:
            raise RuntimeError(f"the lease on {self.worker.name} was entered before; take a new one for each attempt")
        self._entered = True
        if self._epoch is None:
            self._epoch = self._member.enter(self._clock.monotonic())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._epoch is None or self._left:
            return
        self._left = True
        if not self._judged:
            self._member.breaker.neutral(self._epoch, self._clock.monotonic())
        self._member.leave()
        if self._on_release is not None:
            self._on_release()

    def progress(self, now_s: float) -> None:
        """Bytes of this worker arrived at `now_s` (CLOCK_MONOTONIC seconds)."""
        self._member.last_byte_s = now_s

    def succeeded(self) -> None:
        """The worker did its part."""
        self._member.breaker.succeeded(self._judge())
        self._member.show()

    def failed(self, kind: str, detail: str) -> None:
        """
        The worker is to blame; the supervisor is told.

        A kept connection that the worker had closed while idle (`stale_connection`) is no fault: neutral.
        """
        epoch = self._judge()
        now_s = self._clock.monotonic()
        if kind == RetryReason.STALE_CONNECTION:
            self._member.breaker.neutral(epoch, now_s)
            return
        self._member.breaker.failed(epoch, now_s)
        self._member.show()
        self._on_failure(
            WorkerFailure(worker=self.worker.name, launch_id=self.worker.launch_id, kind=kind, detail=detail)
        )

    def _judge(self) -> int:
        if self._epoch is None:
            raise RuntimeError(f"the lease on {self.worker.name} was judged before it was entered")
        if self._judged:
            raise RuntimeError(f"the lease on {self.worker.name} was judged twice")
        self._judged = True
        return self._epoch
