"""The time limits of one exchange, on one timer that is re-armed only when it fires or an earlier limit appears."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum


class Limit(StrEnum):
    """What took too long."""

    CONNECT = "connect"
    FIRST_BYTE = "first_byte"
    FIRST_TOKEN = "first_token"
    IDLE = "idle"
    TOTAL = "total"
    ERROR_BODY = "error_body"
    STALLED_CLIENT = "stalled_client"
    LINGER = "linger"
    HEARTBEAT = "heartbeat"


class LimitTimer:
    """
    Calls `expired(limit)` when the earliest of `deadlines()` (CLOCK_MONOTONIC seconds) has passed.

    `deadlines` is asked again each time the timer fires, so a limit that moves with every event costs nothing per
    event: the timer finds out late that it has moved, and goes back to sleep.
    """

    __slots__ = ("_at", "_deadlines", "_expired", "_handle", "_loop")

    def __init__(self, deadlines: Callable[[], tuple[float, Limit]], expired: Callable[[Limit], None]) -> None:
        self._deadlines = deadlines
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    def arm(self) -> None:
        """Take the current deadlines into account."""
        at, _ = self._deadlines()
        if self._handle is not None:
            if self._at <= at:
                return
            self._handle.cancel()
        self._at = at
        self._handle = self._loop.call_later(max(0.0, at - time.monotonic()), self._fire)

    def cancel(self) -> None:
        """No more calls."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _armed(self) -> bool:
        return self._handle is not None

    def _fire(self) -> None:
        self._handle = None
        at, limit = self._deadlines()
        # uvloop's timers count whole milliseconds from the loop's own, slightly older, idea of now.
        if at <= time.monotonic() + 0.002:
            self._expired(limit)
            at, _ = self._deadlines()
        if not self._armed():  # a type checker would not believe that the call above can have armed it
            self._at = at
            self._handle = self._loop.call_later(max(0.001, at - time.monotonic()), self._fire)
