"""Which time limit of an exchange comes next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gateway.proxy.limits import Limit
from gateway.types import Family, Phase

if TYPE_CHECKING:
    from gateway.proxy.answer import Answer
    from gateway.proxy.exchange import Exchange

LINGER_S = 0.05
"""After a terminal marker, for the end of the message itself (families whose marker may be followed by more)."""


def next_deadline(exchange: Exchange) -> tuple[float, Limit]:
    """The earliest limit in force (CLOCK_MONOTONIC seconds), whether or not it has passed."""
    limits = exchange.policy.limits
    phase = exchange.phase
    found = (exchange.body_done_at + limits.total_s, Limit.TOTAL)
    attempt = exchange.attempt if exchange.attempt is not None and exchange.attempt.active else None
    answer = attempt.answer if attempt is not None else None
    if phase is Phase.CONNECTING:
        found = min(found, (exchange.phase_at + limits.connect_s, Limit.CONNECT))
    elif phase is Phase.HEADERS:
        found = min(found, (exchange.phase_at + limits.first_byte_s, Limit.FIRST_BYTE))
    if answer is not None and attempt is not None:
        if answer.done and not answer.complete:
            found = min(found, (answer.last_at + LINGER_S, Limit.LINGER))
        elif attempt.reading_error:
            found = min(found, (exchange.phase_at + limits.error_body_s, Limit.ERROR_BODY))
        elif answer.stalled_at is not None:
            found = min(found, (answer.stalled_at + limits.stalled_client_s, Limit.STALLED_CLIENT))
        elif exchange.in_send and phase is Phase.STREAMING:
            found = min(found, (attempt.send_at + limits.stalled_client_s, Limit.STALLED_CLIENT))
        else:
            if answer.status and not (answer.streamed and answer.first_byte_at is None):
                found = min(found, (answer.last_at + limits.idle_s, Limit.IDLE))
            if answer.first_token_at is None and _tokens_due(exchange, answer):
                found = min(found, (attempt.sent_at + limits.first_token_s, Limit.FIRST_TOKEN))
            if phase is Phase.STREAMING:
                # A client may stall at any event, and no event arms the timer: look again in time.
                found = min(found, (time.monotonic() + limits.stalled_client_s, Limit.STALLED_CLIENT))
    beat = exchange.policy.heartbeat_s
    if beat > 0 and not exchange.beat_due and not exchange.in_send and heartbeat_fits(exchange):
        last = max(exchange.client_written_at(), exchange.body_done_at)
        found = min(found, (last + beat, Limit.HEARTBEAT))
    return found


def heartbeat_fits(exchange: Exchange) -> bool:
    """A comment would be read as one: the answer is a stream of events, or certain to become one."""
    if not exchange.record.stream:
        return False
    attempt = exchange.attempt
    answer = attempt.answer if attempt is not None and attempt.active else None
    if answer is None or not answer.status:
        # On the other routes a stream may be sound as well as events.
        return exchange.family is not Family.PLAIN
    return answer.observer is not None


def _tokens_due(exchange: Exchange, answer: Answer) -> bool:
    """The answer will have tokens, as far as is known: by its head, and before that by the request."""
    if not answer.status:
        return exchange.record.stream
    return answer.observer is not None or (answer.streamed and answer.first_byte_at is None)
