"""The record of an exchange, completed at its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gateway.types import Phase, Stage

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange


# Looking up a member of an enumeration is a call of a function; these are used for every request.
_STREAMING: Final = Phase.STREAMING
_RELAY: Final = Stage.RELAY


def complete_record(exchange: Exchange) -> None:
    """Fill in what the client was sent, what the worker said and how long it all took."""
    record = exchange.record
    client = exchange.client
    now = time.monotonic()
    record.duration_s = now - record.started_at_s
    record.status = client.status
    record.bytes_out = client.bytes_out
    attempt = exchange.attempt
    if attempt is None or attempt.answer is None:
        return
    answer = attempt.answer
    if answer.first_byte_at is not None:
        record.first_byte_s = answer.first_byte_at - attempt.sent_at
    record.bytes_out += answer.direct_bytes
    if exchange.committed_at and answer.first_byte_at is not None and exchange.phase is _STREAMING:
        record.stages[_RELAY] = max(0.0, exchange.streaming_at - answer.first_byte_at)
    tail = attempt.usage
    if tail is not None:
        record.prompt_tokens = tail.prompt_tokens
        record.cached_tokens = tail.cached_tokens
        record.output_tokens = tail.output_tokens
        record.finish_reasons = tail.finish_reasons
    observer = answer.observer
    if observer is None:
        return
    record.events = answer.events
    record.finish_reasons = tuple(observer.finish_reasons.values())
    record.prompt_tokens = observer.prompt_tokens
    record.cached_tokens = observer.cached_tokens
    record.output_tokens = observer.output_tokens
    first = answer.first_token_at
    if first is not None:
        record.token_events = answer.tokens
        record.tokens_s = answer.last_token_at - first
    if record.output_tokens is None and answer.tokens:
        # The client left, or the worker told no usage: at least so many were relayed.
        record.output_tokens = answer.tokens
        record.output_tokens_estimated = True
    if first is not None and exchange.phase is _STREAMING:
        record.ttft_s = max(first, exchange.streaming_at) - exchange.body_done_at
        if record.output_tokens is not None and record.output_tokens > 1 and not record.output_tokens_estimated:
            record.tpot_s = record.tokens_s / (record.output_tokens - 1)
