"""How many requests one API key may have running."""

from __future__ import annotations

from types import TracebackType

from gateway.errors import Rejected
from gateway.types import RejectionReason

RETRY_AFTER_S = 1.0
"""When one of the key's own requests will end is not known: soon enough for short ones, cheap enough for long ones."""


class InFlightSlots:
    """
    Counts the running requests of one key in this process. Every request enters once, and many are inside at a time.

    `limit` may change while requests run: those that run go on, new ones are judged by the new limit.
    """

    __slots__ = ("in_flight", "limit")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.in_flight = 0

    def __enter__(self) -> InFlightSlots:
        """Raises Rejected when the key has as many requests running as it may."""
        if self.limit is not None and self.in_flight >= self.limit:
            raise Rejected(
                429,
                f"This API key already has {self.in_flight} requests in progress, as many as it may have. "
                "Please try again when one of them has ended.",
                type="requests",
                code="rate_limit_exceeded",
                retry_after_s=RETRY_AFTER_S,
                reason=RejectionReason.TENANT_LIMIT,
            )
        self.in_flight += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.in_flight -= 1
