"""What to do after an attempt failed: Decision 10 as a pure table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from gateway.types import Outcome, Phase, RetryReason

MAX_DEATHS = 2
"""A request that was in flight at so many worker deaths may be what kills them."""


class Cause(StrEnum):
    """Why an attempt ended without success."""

    CONNECT = "connect"  # refused, unreachable or timed out: nothing was sent
    STALE_CONNECTION = "stale_connection"  # a reused connection closed without one response byte
    CONNECTION_LOST = "connection_lost"  # a fresh connection lost, or any after response bytes
    STATUS_502 = "status_502"
    STATUS_503 = "status_503"
    STATUS_4XX = "status_4xx"
    STATUS_5XX = "status_5xx"  # 500 and others that trying again does not mend
    DRAINING_ENGINE = "draining_engine"  # vLLM's 500 "cannot schedule new futures"
    IN_BAND_ERROR = "in_band_error"  # an error as first event, its status 5xx
    IN_BAND_4XX = "in_band_4xx"
    INCOMPLETE = "incomplete"  # the stream ended without its marker
    ABORTED = "aborted"  # finish_reason abort that we did not cause
    TIMEOUT = "timeout"  # first byte, first token, idle or total
    PROTOCOL = "protocol"  # not HTTP/1.1, or over a limit


class Action(StrEnum):
    """What the exchange does next."""

    NEXT_WORKER = "next_worker"
    FRESH_CONNECTION = "fresh_connection"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is set iff the action is a retry; `outcome` is what the exchange is counted as if it ends here."""

    action: Action
    reason: RetryReason | None
    outcome: Outcome
    blames_worker: bool


@dataclass(frozen=True, slots=True)
class _Row:
    reason: RetryReason | None
    outcome: Outcome
    blames_worker: bool = True


_TABLE: Final[Mapping[Cause, _Row]] = MappingProxyType(
    {
        Cause.CONNECT: _Row(RetryReason.CONNECT, Outcome.UPSTREAM_CONNECT),
        # An idle connection may be closed at any time: that says nothing about the worker.
        Cause.STALE_CONNECTION: _Row(RetryReason.STALE_CONNECTION, Outcome.UPSTREAM_ERROR, blames_worker=False),
        Cause.CONNECTION_LOST: _Row(RetryReason.CONNECTION_LOST, Outcome.UPSTREAM_ERROR),
        Cause.STATUS_502: _Row(RetryReason.STATUS_5XX, Outcome.UPSTREAM_ERROR),
        Cause.STATUS_503: _Row(RetryReason.STATUS_5XX, Outcome.UPSTREAM_ERROR),
        Cause.STATUS_4XX: _Row(None, Outcome.CLIENT_ERROR, blames_worker=False),
        Cause.STATUS_5XX: _Row(None, Outcome.UPSTREAM_ERROR),
        Cause.DRAINING_ENGINE: _Row(RetryReason.DRAINING_ENGINE, Outcome.UPSTREAM_ERROR),
        Cause.IN_BAND_ERROR: _Row(RetryReason.IN_BAND_ERROR, Outcome.UPSTREAM_ERROR),
        Cause.IN_BAND_4XX: _Row(None, Outcome.CLIENT_ERROR, blames_worker=False),
        # The stream ended before its first token: nothing was answered, and the worker is done with it.
        Cause.INCOMPLETE: _Row(RetryReason.CONNECTION_LOST, Outcome.UPSTREAM_INCOMPLETE),
        Cause.ABORTED: _Row(RetryReason.CONNECTION_LOST, Outcome.UPSTREAM_INCOMPLETE),
        # The worker may still be generating: a second one would double the load that made the first slow.
        Cause.TIMEOUT: _Row(None, Outcome.UPSTREAM_TIMEOUT),
        Cause.PROTOCOL: _Row(None, Outcome.UPSTREAM_ERROR),
    }
)

# In these phases the worker may have begun to work on the request when it was lost.
_DEADLY = frozenset({Cause.CONNECTION_LOST, Cause.INCOMPLETE, Cause.ABORTED})


def cause_of_status(status: int, body: bytes) -> Cause:
    """
    Classify a worker's answer with `status` of 400 or more.

    A worker's 401 or 403 means that our key for it is wrong: the worker's failure, not the client's.
    """
    if status == 502:
        return Cause.STATUS_502
    if status == 503:
        return Cause.STATUS_503
    if status >= 500 and b"cannot schedule new futures" in body:
        return Cause.DRAINING_ENGINE
    if status >= 500 or status in (401, 403):
        return Cause.STATUS_5XX
    return Cause.STATUS_4XX


def cause_of_in_band(status: int) -> Cause:
    """Classify an in-band error by the status it stands for; a worker's 401 or 403 is about our key."""
    return Cause.IN_BAND_4XX if status < 500 and status not in (401, 403) else Cause.IN_BAND_ERROR


def decide(phase: Phase, cause: Cause, *, retries_left: int, deaths: int = 0, stale_retried: bool = False) -> Verdict:
    """
    The next action after a failed attempt.

    Args:
        phase: STREAMING means that an event has gone to the client: then there is never a retry.
        cause: Why the attempt failed.
        retries_left: Of the exchange's own limit and the retry budget, whichever is less.
        deaths: Worker deaths (connection lost, stream cut) this request was in flight at, this one included.
        stale_retried: The retry on a fresh connection, which costs no budget, has been used.
    """
    row = _TABLE[cause]
    action = Action.FAIL
    if phase is Phase.STREAMING or row.reason is None:
        pass
    elif cause is Cause.STALE_CONNECTION and not stale_retried:
        action = Action.FRESH_CONNECTION
    elif retries_left > 0 and not (cause in _DEADLY and deaths >= MAX_DEATHS):
        action = Action.NEXT_WORKER
    return Verdict(action, None if action is Action.FAIL else row.reason, row.outcome, row.blames_worker)
