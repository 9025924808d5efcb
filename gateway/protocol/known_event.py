"""
Events that differ from earlier ones in their text alone, or in their stream's id, recognised by comparing bytes.

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
_MOST_KINDS: Final = 4
"""Chat and completions, with and without reasoning. What comes again is found by comparing with each."""
# An id and, behind it in the same object, a time: plain characters and digits, whose values say nothing of the event.
_STAMP: Final = re.compile(rb"""("id" ?: ?")([ !#-\[\]-~]*)("[^{}\[\]]*?"created" ?: ?)([1-9][0-9]{0,14})(?=,)""")
_QUOTE: Final = 34
_BACKSLASH: Final = 92


class KnownEvent:
    """
    A kind of event: what stands around its text, whatever the stream's id and time of creation.

    Attributes:
        after: What stands behind the text, to the end of the event.
    """

    __slots__ = ("_begins", "after")

    def __init__(self, begins: re.Pattern[bytes], after: bytes) -> None:
        self._begins = begins
        self.after = after

    @classmethod
    def of(cls, event: bytes) -> KnownEvent | None:
        """
        What the event (one line and its blank one) has in common with others; None if that cannot be told.

        An event of the kind carries tokens iff its text is not empty: one with more in it, such as a second choice, is
        none of these.

        Args:
            event: One of which `glance` says 1.
        """
        if len(event) > _LONGEST_LESSON:
            return None
        for found in _TEXT_BEGINS.finditer(event):
            begin = found.end()
            close = text_end(event, begin, len(event))
            if close > begin:
                before, after = event[:begin], event[close:]
                if glance(before + after[:-2]) == 0:
                    return cls(_any_stream(before), after)
        return None

    def text_begin(self, event: bytes) -> int:
        """Where the text begins in `event`, if what stands before it is of this kind; else 0."""
        found = self._begins.match(event)
        return 0 if found is None else found.end()


class KnownEvents:
    """The kinds of events that a worker has sent lately: it writes the same into all streams."""

    __slots__ = ("_kinds", "_next")

    def __init__(self) -> None:
        self._kinds: list[KnownEvent] = []
        self._next = 0

    def around_text(self, event: bytes) -> tuple[bytes, bytes] | None:
        """What stands around the text of `event` and of its successors, if it is one of these; `glance` would say 1."""
        for kind in self._kinds:
            begin = kind.text_begin(event)
            if begin:
                before = event[:begin]
                if known_events(event, 0, len(event), before, kind.after) == 1:
                    return before, kind.after
        return None

    def learn(self, event: bytes) -> tuple[bytes, bytes] | None:
        """As `around_text`, of an event that is none of these, and of which `glance` says 1."""
        kind = KnownEvent.of(event)
        if kind is None:
            return None
        if len(self._kinds) < _MOST_KINDS:
            self._kinds.append(kind)
        else:
            self._kinds[self._next] = kind
            self._next = (self._next + 1) % _MOST_KINDS
        return self.around_text(event)


def known_events(data: bytes, start: int, end: int, before: bytes, after: bytes) -> int:
    """
    How many events, each with some text between `before` and `after`, `data` consists of from `start` to `end`; 0 if
    of anything else. `glance` would say 1 of each.
    """
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


def _any_stream(before: bytes) -> re.Pattern[bytes]:
    """An expression for what stands before the text in any stream, by the beginning of one."""
    stamp = _STAMP.search(before)
    if stamp is None:
        return re.compile(re.escape(before))
    head, between, tail = before[: stamp.end(1)], stamp[3], before[stamp.end() :]
    return re.compile(re.escape(head) + rb"[ !#-\[\]-~]*" + re.escape(between) + rb"[1-9][0-9]{0,14}" + re.escape(tail))


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


_ESCAPED: Final = b'"\\/bfnrt'
