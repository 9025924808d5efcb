"""Which time limit of an exchange comes next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gateway.proxy.limits import Limit
from gateway.types import Family, Phase

if TYPE_CHECKING:
    from gateway.proxy.answer import Answer
    from gateway.proxy.exchange import Exchange

# Looking up a member of an enumeration is a call of a function; these are used for every stream.
_CONNECTING: Final = Phase.CONNECTING
_HEADERS: Final = Phase.HEADERS
_STREAMING: Final = Phase.STREAMING
_PLAIN: Final = Family.PLAIN
_CONNECT: Final = Limit.CONNECT
_FIRST_BYTE: Final = Limit.FIRST_BYTE
_FIRST_TOKEN: Final = Limit.FIRST_TOKEN
_IDLE: Final = Limit.IDLE
_TOTAL: Final = Limit.TOTAL
_STALLED_CLIENT: Final = Limit.STALLED_CLIENT
_HEARTBEAT: Final = Limit.HEARTBEAT

LINGER_S: Final = 0.05
"""After a terminal marker, for the end of the message itself (families whose marker may be followed by more)."""


def next_deadline(exchange: Exchange) -> tuple[float, Limit]:
    """The earliest limit in force (CLOCK_MONOTONIC seconds), whether or not it has passed."""
    limits = exchange.policy.limits
    phase = exchange.phase
    found = (exchange.body_done_at + limits.total_s, _TOTAL)
    attempt = exchange.attempt if exchange.attempt is not None and exchange.attempt.active else None
    answer = attempt.answer if attempt is not None else None
    if phase is _CONNECTING:
        found = min(found, (exchange.phase_at + limits.connect_s, _CONNECT))
    elif phase is _HEADERS:
        found = min(found, (exchange.phase_at + limits.first_byte_s, _FIRST_BYTE))
    if answer is not None and attempt is not None:
        if answer.done and not answer.complete:
            found = min(found, (answer.last_at + LINGER_S, Limit.LINGER))
        elif attempt.reading_error:
            found = min(found, (exchange.phase_at + limits.error_body_s, Limit.ERROR_BODY))
        elif answer.stalled_at is not None:
            found = min(found, (answer.stalled_at + limits.stalled_client_s, _STALLED_CLIENT))
        elif exchange.in_send and phase is _STREAMING:
            found = min(found, (attempt.send_at + limits.stalled_client_s, _STALLED_CLIENT))
        else:
            if answer.status and not (answer.streamed and answer.first_byte_at is None):
                found = min(found, (answer.last_at + limits.idle_s, _IDLE))
            if answer.first_token_at is None and _tokens_due(exchange, answer):
                found = min(found, (attempt.sent_at + limits.first_token_s, _FIRST_TOKEN))
            if phase is _STREAMING:
                # A client may stall at any event, and no event arms the timer: look again in time.
                found = min(found, (time.monotonic() + limits.stalled_client_s, _STALLED_CLIENT))
    beat = exchange.policy.heartbeat_s
    if beat > 0 and not exchange.beat_due and not exchange.in_send and heartbeat_fits(exchange):
        last = max(exchange.client_written_at(), exchange.body_done_at)
        found = min(found, (last + beat, _HEARTBEAT))
    return found


def heartbeat_fits(exchange: Exchange) -> bool:
    """A comment would be read as one: the answer is a stream of events, or certain to become one."""
    if not exchange.record.stream:
        return False
    attempt = exchange.attempt
    answer = attempt.answer if attempt is not None and attempt.active else None
    if answer is None or not answer.status:
        # On the other routes a stream may be sound as well as events.
        return exchange.family is not _PLAIN
    return answer.observer is not None


def _tokens_due(exchange: Exchange, answer: Answer) -> bool:
    """The answer will have tokens, as far as is known: by its head, and before that by the request."""
    if not answer.status:
        return exchange.record.stream
    return answer.observer is not None or (answer.streamed and answer.first_byte_at is None)
