"""
What the relay needs from the rest of a gateway process, as small Protocols.

`admission`, `fleet` and `metrics` implement them; `app.py` joins the two sides. `proxy` imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from gateway.gaps import TokenGaps
from gateway.protocol.request import RequestView
from gateway.record import ExchangeRecord
from gateway.types import ModelView, WorkerView

_UNLIMITED: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Who sent a request. `tenant` is the name of the API key, "" for anonymous callers; `models` are the public names
    the key may use, None for all. `priority` is for admission: higher goes first.

    `slots` is entered by each exchange for as long as it runs; entering raises `Rejected` when the caller has as many
    running as it may. Many exchanges are inside at a time.
    """

    tenant: str = ""
    models: frozenset[str] | None = None
    priority: int = 0
    slots: AbstractContextManager[object] = field(default=_UNLIMITED, compare=False, repr=False)


class Lease(Protocol):
    """
    One attempt's claim on one worker; entering counts it in flight, leaving gives it back, whatever happened.

    Exactly one of `succeeded` and `failed` may be called; neither means neutral (the client left, or was at fault).
    """

    worker: WorkerView
    policy: str
    reason: str

    def __enter__(self) -> Lease: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def progress(self, now_s: float) -> None:
        """Bytes of this worker arrived at `now_s` (CLOCK_MONOTONIC)."""
        ...

    def succeeded(self) -> None:
        """The worker did its part."""
        ...

    def failed(self, kind: str, detail: str) -> None:
        """The worker is to blame; `kind` is a `RetryReason` or `Outcome` value."""
        ...


class Turn(Protocol):
    """A wait in line; leaving it gives up the place, or a lease that was granted and not taken."""

    def __enter__(self) -> Turn: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def over(self) -> bool:
        """The wait is over."""
        ...

    def take(self) -> Lease | None:
        """
        The lease, which counts already and must be entered; None when no worker is to be had.

        Raises:
            Rejected: Too many wait, or it took too long.
        """
        ...


class Dispatcher(Protocol):
    """Chooses workers and gives out leases. Decisions on the latest snapshot; never blocks."""

    @property
    def draining(self) -> bool:
        """True once no new work may be accepted."""
        ...

    def models(self) -> tuple[ModelView, ...]:
        """All public models, in configuration order."""
        ...

    def resolve(self, name: str) -> ModelView | None:
        """The model that a name or alias means."""
        ...

    def lease(self, model: str, request: RequestView, excluded: frozenset[str], since_s: float) -> Lease | None:
        """
        Choose a worker of `model` outside `excluded` (worker names) for a request that was complete at `since_s`
        (CLOCK_MONOTONIC). None when there is none to be had at once: `queue` says whether there will be.

        The lease is counted only when entered.
        """
        ...

    def queue(
        self,
        model: str,
        request: RequestView,
        excluded: frozenset[str],
        since_s: float,
        wake: Callable[[], object],
        *,
        again: bool,
    ) -> Turn:
        """
        A place in the line for `model`, taken by entering it.

        Args:
            wake: Called when the wait is over.
            again: An attempt of this request has failed; it is not made to wait for a worker that is on its way.
        """
        ...


class AttemptTrace(Protocol):
    """One attempt in the trace of its request."""

    def headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The client's headers with the attempt's trace context in place of the client's."""
        ...

    def ended(self, status: int, attempt_id: str, failure: str) -> None:
        """The attempt is over: the worker's status (0: none), its name for the request, and a word for what failed."""
        ...


class RequestTrace(Protocol):
    """The trace of one request."""

    def attempt(self, worker: WorkerView) -> AttemptTrace:
        """An attempt at `worker` begins."""
        ...

    def ended(self) -> None:
        """The exchange is over and its record complete."""
        ...


class Tracer(Protocol):
    """Where traces are on. Nothing in it blocks or raises."""

    def request(self, record: ExchangeRecord, method: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """A request with these headers has begun; `record` is filled in until `RequestTrace.ended`."""
        ...


class Recorder(Protocol):
    """Where exchanges are counted and logged."""

    def started(self, model: str, tenant: str | None) -> None:
        """An exchange of `model` ("" when unknown) and of `tenant` (see `ExchangeRecord`) is in flight."""
        ...

    def inter_token(self, model: str) -> TokenGaps:
        """Where the gaps of a stream of `model` are counted: the only metric touched per event."""
        ...

    def finished(self, record: ExchangeRecord) -> None:
        """The exchange that was `started` has ended: count it, and write its canonical log line, now or soon."""
        ...
