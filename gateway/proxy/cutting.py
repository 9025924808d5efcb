"""Where a piece of a stream may be cut: behind its last whole event, or before an error nobody would recognise."""

from __future__ import annotations

import re

from gateway.protocol.observer import StreamObserver
from gateway.types import Family

_BLANK_LINE = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")


def events_before_error(text: bytes, family: Family) -> bytes:
    """The events at the beginning of `text` (which begins with one) up to the first that is an error."""
    good = 0
    for blank in _BLANK_LINE.finditer(text):
        event = StreamObserver(family)
        event.feed(text[good : blank.end()])
        if event.error is not None:
            break
        good = blank.end()
    return text[:good]


def after_last_blank_line(text: bytes) -> int:
    """Position behind the last blank line, whatever the line ends; 0 when there is none."""
    return max(
        position + len(blank) if (position := text.rfind(blank)) >= 0 else 0
        for blank in (b"\n\n", b"\r\n\r\n", b"\r\r")
    )
