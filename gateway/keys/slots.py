"""How many requests one API key may have running."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from gateway.errors import Rejected
from gateway.types import RejectionReason

RETRY_AFTER_S = 1.0
"""When one of the key's own requests will end is not known: soon enough for short ones, cheap enough for long ones."""


class SharedCount(Protocol):
    """Where all gateway processes see how many requests of one key each of them has; `fleet.KeyCount` is it."""

    def count(self, in_flight: int) -> None:
        """So many are in flight here."""
        ...

    def others(self) -> int:
        """In flight in all other processes."""
        ...


class InFlightSlots:
    """
    Counts the running requests of one key. Every request enters once, and many are inside at a time.

    The limit is that of all gateway processes together, overshot by at most the other processes when all of them let
    one in at the same moment. It may change while requests run: those that run go on, new ones are judged by the new
    limit.

    Args:
        limit: None for no limit; then nobody else is told.
        shared: None: this process is alone.
    """

    __slots__ = ("_limit", "_shared", "in_flight")

    def __init__(self, limit: int | None, shared: SharedCount | None = None) -> None:
        self._limit = limit
        self._shared = shared
        self.in_flight = 0
        """In this process."""

    @property
    def limit(self) -> int | None:
        """As many as may run at a time."""
        return self._limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        self._limit = limit
        if self._shared is not None:
            self._shared.count(0 if limit is None else self.in_flight)

    def __enter__(self) -> InFlightSlots:
        """Raises Rejected when the key has as many requests running as it may."""
        if self._limit is not None:
            running = self.in_flight if self._shared is None else self.in_flight + self._shared.others()
            if running >= self._limit:
                raise Rejected(
                    429,
                    f"This API key already has {running} requests in progress, as many as it may have. "
                    "Please try again when one of them has ended.",
                    type="requests",
                    code="rate_limit_exceeded",
                    retry_after_s=RETRY_AFTER_S,
                    reason=RejectionReason.TENANT_LIMIT,
                )
        self.in_flight += 1
        self._tell()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.in_flight -= 1
        self._tell()

    def _tell(self) -> None:
        if self._shared is not None and self._limit is not None:
            self._shared.count(self.in_flight)
