"""Errors inside a 200 stream, in every form that workers have been seen to send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InBandError:
    """
    An error found inside a 200 stream.

    `status` is the HTTP status it stands for (502 when it names none). `told` is False when clients do not recognise
    its form as an error (flat, not under `error`): the gateway must then tell it itself.
    """

    status: int
    message: str
    type: str
    code: str | None
    param: str | None
    told: bool


_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "not_found_error": 404,
    "notfounderror": 404,
    "overloaded_error": 503,
    "service unavailable": 503,
    "internalservererror": 500,
    "internal_server_error": 500,
    "server_error": 500,
    "api_error": 500,
}


def in_band_error(event: Mapping[str, object], *, told: bool | None = None) -> InBandError | None:
    """
    The error that an event's payload is, or None.

    Known forms: `{"error": {...}}`, `{"error": "text"}`, the flat `{"object": "error", "message": ...}`, the flat
    `{"type": "error", "message": ...}` of responses, Anthropic's `{"type": "error", "error": {...}}`.
    """
    error = event.get("error")
    flat = event.get("object") == "error" or event.get("type") == "error"
    if error is None and not flat:
        return None
    seen = error if isinstance(error, dict) else event if error is None else {"message": error}
    # The python SDK passes over an empty or textual error, and over the flat form except on responses.
    recognised = (isinstance(error, dict) and bool(error)) or (error is None and event.get("type") == "error")
    return InBandError(
        _status(seen),
        _text(seen.get("message")) or "The worker reported an error.",
        _text(seen.get("type")) if seen is not event else "server_error",
        _text(seen.get("code")) or None,
        _text(seen.get("param")) or None,
        recognised if told is None else told,
    )


def _status(error: Mapping[str, object]) -> int:
    for name in ("code", "status"):
        value = error.get(name)
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return value
    return _STATUS_OF_TYPE.get(_text(error.get("type")).lower(), 502)


def _text(value: object) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)
