"""What the gateway wants to know of an answer that was not streamed: usage, finish reasons, a hidden error."""

from __future__ import annotations

import re

import msgspec

from gateway.protocol.in_band import InBandError, in_band_error
from gateway.proxy.plain_payloads import BODY, USAGE, Usage

_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')


class PlainTail:
    """Token counts as the worker told them, None where it did not; finish reasons in the order of the choices."""

    __slots__ = ("cached_tokens", "error", "finish_reasons", "output_tokens", "prompt_tokens")

    def __init__(
        self,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        output_tokens: int | None,
        finish_reasons: tuple[str, ...],
        error: InBandError | None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.output_tokens = output_tokens
        self.finish_reasons = finish_reasons
        self.error = error


def read_plain(body: bytes) -> PlainTail | None:
    """Read a whole answer, or the end of one that was too large to be held. None when nothing can be read from it."""
    if not body.startswith(b"{"):
        return _from_end(body)
    try:
        read = BODY.decode(body)
    except msgspec.DecodeError:
        return _from_end(body)
    error = None
    if read.object == "error" or bytes(read.error) not in (b"null", b"{}"):
        error = in_band_error(msgspec.json.decode(body))
    reasons = tuple(choice.finish_reason for choice in read.choices or () if choice.finish_reason is not None)
    return _counts(read.usage, reasons, error)


def _from_end(body: bytes) -> PlainTail | None:
    """The last usage object in the last bytes of an answer."""
    body = body[-4096:]
    begin = max((match.end() for match in _USAGE.finditer(body)), default=-1)
    if begin < 0:
        return None
    depth = 0
    for position in range(begin, len(body)):
        byte = body[position]
        if byte == 0x7B:
            depth += 1
        elif byte == 0x7D:
            depth -= 1
            if depth == 0:
                try:
                    return _counts(USAGE.decode(body[begin : position + 1]))
                except msgspec.DecodeError:
                    return None
    return None


def _counts(usage: Usage | None, reasons: tuple[str, ...] = (), error: InBandError | None = None) -> PlainTail:
    if usage is None:
        return PlainTail(None, None, None, reasons, error)
    details = usage.prompt_tokens_details or usage.input_tokens_details
    prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
    output = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    cached = details.cached_tokens if details is not None else usage.cache_read_input_tokens
    return PlainTail(prompt, cached, output, reasons, error)
