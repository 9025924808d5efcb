"""What a worker's error says about trying again, in headers, brought to what all clients obey."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from gateway.proxy.known_head import Headers

MAX_PAUSE_S = 60
"""Clients differ in what they make of longer pauses; up to a minute all obey."""


def retry_hints(headers: Headers) -> tuple[str | None, Headers]:
    """
    The pause in seconds as text (None: none was named), and the headers that reach the client as they are.

    A Retry-After that is a date is taken relative to the worker's own Date: its clock need not be ours.
    """
    pause: str | None = None
    date: str | None = None
    kept: Headers = []
    for name, value in headers:
        if name == b"retry-after":
            pause = value.decode("latin-1").strip()
        elif name == b"date":
            date = value.decode("latin-1")
        elif name == b"retry-after-ms" and value.isdigit():
            kept.append((name, b"%d" % min(int(value[:12]), MAX_PAUSE_S * 1000)))
        elif name.startswith(b"x-ratelimit-") or (name == b"x-should-retry" and value in (b"true", b"false")):
            kept.append((name, value))
    if pause is not None and not pause.replace(".", "", 1).isdigit():
        pause = _until(pause, date)
    return pause, kept


def _until(moment: str, date: str | None) -> str | None:
    """Seconds from `date` (now without one) to `moment`, None when it is no date or lies behind."""
    try:
        then = parsedate_to_datetime(moment).timestamp()
        now = parsedate_to_datetime(date).timestamp() if date is not None else time.time()
    except (TypeError, ValueError, OverflowError):
        return None
    return str(min(int(then - now), MAX_PAUSE_S)) if then > now else None
