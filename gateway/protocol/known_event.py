"""
Events that differ from an earlier one of their stream in their text alone, recognised by comparing bytes.

A worker writes the same JSON around every token. Once an event has been decoded, the next ones need no decoder: what
stands before and after the text is the same, and the text between is a JSON string's.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.protocol.observer import glance

_TEXT_BEGINS: Final = re.compile(rb'"(?:content|text|reasoning|reasoning_content|arguments)" ?: ?"')
_LONGEST_LESSON: Final = 4096
"""Bytes. Each place where the text may be costs two decodings of the whole event."""
_QUOTE: Final = 34
_BACKSLASH: Final = 92
_BLANK_LINE: Final = b"\n\n"


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
        if len(event) > _LONGEST_LESSON:
            return None
        for found in _TEXT_BEGINS.finditer(event):
            begin = found.end()
            close = text_end(event, begin, len(event))
            if close > begin and event[close : close + 1] == b'"':
                before, after = event[:begin], event[close:]
                if glance(before + after) == 0 and glance(before + b"x" + after) == 1:
                    return cls(before, after + _BLANK_LINE)
        return None

    def fills(self, data: bytes, start: int, end: int) -> int:
        """
        How many such events, each with some text and its blank line, `data` consists of from `start` to `end`; 0 if of
        anything else. `glance` would say 1 of each.
        """
        before, after = self._before, self._after
        found = 0
        while start < end:
            begin = start + len(before)
            if data[start:begin] != before:
                return 0
            close = text_end(data, begin, end)
            start = close + len(after)
            if close <= begin or start > end or data[close:start] != after:
                return 0
            found += 1
        return found


def text_end(data: bytes, begin: int, end: int) -> int:
    """Where the JSON string ends whose inside begins at `begin`: its quote's position; 0 if it is cut, or looks odd."""
    at = begin
    plain = True
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            return at if plain or _is_utf8(data[begin:at]) else 0
        if byte == _BACKSLASH:
            # Those of one character; numbered ones, which may stand for half a character, are the decoder's.
            at += 1
            if at >= end or data[at] not in _ESCAPED:
                return 0
        elif byte > 126:
            plain = False
        elif byte < 32:
            return 0
        at += 1
    return 0


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


_ESCAPED: Final = b'"\\/bfnrt'
