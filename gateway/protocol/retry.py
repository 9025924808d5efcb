"""What to do after an attempt failed: Decision 10 as a pure table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.types import Outcome, Phase, RetryReason


class Cause(StrEnum):
    """Why an attempt ended without success."""

    CONNECT = "connect"  # refused, unreachable or timed out: nothing was sent
    STALE_CONNECTION = "stale_connection"  # a reused connection closed without one response byte
    CONNECTION_LOST = "connection_lost"  # a fresh connection lost, or any after response bytes
    STATUS_502 = "status_502"
    STATUS_503 = "status_503"
    STATUS_4XX = "status_4xx"
    STATUS_5XX = "status_5xx"  # 500 and others that retrying does not mend
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


def cause_of_status(status: int, body: bytes) -> Cause:
    """Classify a worker's non-2xx answer."""
    raise NotImplementedError


def decide(phase: Phase, cause: Cause, *, retries_left: int, deaths: int = 0, stale_retried: bool = False) -> Verdict:
    """
    The next action. `phase` STREAMING means an event has gone to the client: never a retry. `deaths`: worker deaths
    this request was in flight at (two: not tried again). `stale_retried`: the free retry on a fresh connection is used.
    """
    raise NotImplementedError
