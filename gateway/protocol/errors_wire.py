"""Errors as clients of each API family expect them, and workers' errors brought into that form."""

from __future__ import annotations

from gateway.errors import RequestError
from gateway.protocol.observer import InBandError
from gateway.types import Family, Outcome

Headers = list[tuple[bytes, bytes]]


def error_body(family: Family, error: RequestError, request_id: str) -> bytes:
    """The body of a non-2xx response."""
    raise NotImplementedError


def error_headers(error: RequestError) -> Headers:
    """content-type, retry-after (at most 60) and x-should-retry; not the request ids (see `headers`)."""
    raise NotImplementedError


def error_event(family: Family, error: RequestError, request_id: str, sequence_number: int = 0) -> bytes:
    """The event that ends a failed stream; nothing follows it, no `[DONE]`."""
    raise NotImplementedError


def normalise_upstream_error(
    status: int, content_type: str, body: bytes, family: Family, retry_after: str | None = None
) -> RequestError:
    """What the client is told about a worker's non-2xx answer."""
    raise NotImplementedError


def from_in_band(error: InBandError) -> RequestError:
    """The status error that an in-band error stands for (first event, response not yet committed)."""
    raise NotImplementedError


def failure(outcome: Outcome, *, retry_after_s: float | None = None) -> RequestError:
    """The gateway's own error for an outcome that is not the client's fault; static text, nothing internal."""
    raise NotImplementedError
