"""How many bytes of request bodies a gateway process holds at a time: large ones are turned away before they arrive."""

from __future__ import annotations

from typing import Final

from gateway.errors import Rejected
from gateway.types import RejectionReason

UNCOUNTED_BYTES: Final = 64 * 1024
"""Bodies up to here are not counted: thousands of them matter less than one large one, and most are smaller."""
RETRY_AFTER_S: Final = 2.0
"""A large body is held for seconds: while it arrives, while its request waits, and until its answer has begun."""


class BodyBudget:
    """
    Bytes held, of all exchanges of this process. Whoever took them gives them back.

    `held_bytes` is zero at idle.
    """

    __slots__ = ("_limit_bytes", "held_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count so many more. Raises Rejected when they are too many; nothing is counted then."""
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise Rejected(
                429,
                "The gateway holds as much of large requests in memory as it may. Please try again later.",
                type="requests",
                code="too_many_large_requests",
                retry_after_s=RETRY_AFTER_S,
                reason=RejectionReason.BODY_MEMORY,
            )
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count so many fewer."""
        self.held_bytes -= size_bytes
