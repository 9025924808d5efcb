"""
Events that differ from an earlier one of their stream in their text alone, recognised by comparing bytes.

A worker writes the same JSON around every token. Once an event has been decoded, the next ones need no decoder: what
stands before and after the text is the same, and the text has nothing that JSON would escape.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.protocol.observer import glance

END: Final = b"\n\n\r\n"
"""What follows an event that is alone in its chunk: its blank line, and the chunk's own line end."""
_TEXT_BEGINS: Final = re.compile(rb'"(?:content|text)" ?: ?"')
# Printable ASCII but for quotes and backslashes: it means itself in a JSON string, and never ends one.
_TEXT: Final = re.compile(rb"[ !#-\[\]-~]+")


class KnownEvent:
    """What stands around the text in the events of one stream."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after

    @classmethod
    def of(cls, event: bytes) -> KnownEvent | None:
        """
        What the event (one line, without its blank one) has in common with its successors; None if that cannot be told.

        It carries tokens iff that text is not empty: an event with more in it, such as a second choice, is none of
        these.
        """
        for found in _TEXT_BEGINS.finditer(event):
            close = event.find(b'"', found.end())
            if close > found.end() and _TEXT.fullmatch(event, found.end(), close) is not None:
                before, after = event[: found.end()], event[close:]
                if glance(before + after) == 0 and glance(before + b"x" + after) == 1:
                    return cls(before, after + END)
        return None

    def is_in(self, data: bytes, start: int) -> bool:
        """Whether `data` from `start` on is such an event with some text, and `END`: then `glance` would say 1."""
        before, after = self._before, self._after
        return (
            data.startswith(before, start)
            and data.endswith(after)
            and _TEXT.fullmatch(data, start + len(before), len(data) - len(after)) is not None
        )
