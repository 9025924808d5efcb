"""How one request can end, as a closed set, so that every scheduled request is counted exactly once."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The end of one request, in order of precedence where several apply."""

    OK = "ok"
    CANCELLED = "cancelled"
    """The client left on purpose, as its scenario wanted: neither a success nor a failure."""
    UNSENT = "unsent"
    """Due, and given up before a byte of it was sent; the record's detail is the reason (`UnsentReason`)."""
    CONNECT = "connect"
    """No connection: refused, unreachable, or not within the time."""
    HTTP_STATUS = "http_status"
    """An answer that is not 200."""
    IN_BAND_ERROR = "in_band_error"
    """A 200 stream with an error event."""
    RESET = "reset"
    """The connection was reset."""
    TIMEOUT = "timeout"
    """No byte for as long as the read timeout."""
    MALFORMED = "malformed"
    """Bytes that are no HTTP, or an event that is no JSON object."""
    TRUNCATED = "truncated"
    """The stream ended without [DONE], or its framing was cut."""
    ABORTED = "aborted"
    """finish_reason "abort": the worker gave the request up."""
    TOKENLESS = "tokenless"
    """A proper end without a single token-bearing event."""
    CUT_AT_END = "cut_at_end"
    """Still running when the time to finish after the end of the run was over."""


class UnsentReason(StrEnum):
    """Why a scheduled request was never sent."""

    IN_FLIGHT_LIMIT = "in_flight_limit"
    """As many requests as --max-in-flight allows were running when it was due."""
    RUN_ENDED = "run_ended"
    """The run was over (or interrupted) before its connection was open."""
