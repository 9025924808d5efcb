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
"""Bytes. Each place where the text may be costs a decoding of the whole event."""
_MOST_KINDS: Final = 8
"""Chat and completions, with and without reasoning, of a few model names: each is compared with at a stream's begin."""
_MOST_SEEN: Final = 32
"""Kinds met once, of which the same must come again to be known: some streams never write the same twice."""
# An id and, behind it in the same object, a time: plain characters and digits, whose values say nothing of the event.
_STAMP: Final = re.compile(rb"""("id" ?: ?")[ !#-\[\]-~]*("[^{}\[\]]{0,100}?"created" ?: ?)[1-9][0-9]{0,14}(?=,)""")
_ID: Final = re.compile(rb"[ !#-\[\]-~]*")
_TIME: Final = re.compile(rb"[1-9][0-9]{0,14}")
_QUOTE: Final = 34
_BACKSLASH: Final = 92


class KnownEvent:
    """
    A kind of event: what stands around its text, whatever the stream's id and time of creation.

    Args:
        parts: What stands before the id, between id and time, between time and text, and behind the text to the end.
    """

    __slots__ = ("_begin", "_between", "_end", "after")

    def __init__(self, parts: tuple[bytes, bytes, bytes, bytes]) -> None:
        self._begin, self._between, self._end, self.after = parts

    def text_begin(self, event: bytes) -> int:
        """Where the text begins in `event`, if what stands before it is of this kind; else 0."""
        at = len(self._begin)
        if event[:at] != self._begin:
            return 0
        at = _past(_ID, event, at)
        behind = at + len(self._between)
        if event[at:behind] != self._between:
            return 0
        at = _past(_TIME, event, behind)
        behind = at + len(self._end)
        return behind if at and event[at:behind] == self._end else 0


class KnownEvents:
    """The kinds of events that a worker sends: it writes the same into all streams."""

    __slots__ = ("_kinds", "_next", "_seen")

    def __init__(self) -> None:
        self._kinds: list[KnownEvent] = []
        self._next = 0
        self._seen: dict[tuple[bytes, bytes, bytes, bytes], None] = {}

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
        around = around_text(event)
        if around is None:
            return None
        before, after = around
        stamp = _STAMP.search(before)
        if stamp is not None:
            self._meet((before[: stamp.end(1)], stamp[2], before[stamp.end() :], after))
        return around

    def _meet(self, parts: tuple[bytes, bytes, bytes, bytes]) -> None:
        """Know the kind from the second time on; the oldest makes room."""
        if parts not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[parts] = None
            return
        del self._seen[parts]
        kind = KnownEvent(parts)
        if len(self._kinds) < _MOST_KINDS:
            self._kinds.append(kind)
        else:
            self._kinds[self._next] = kind
            self._next = (self._next + 1) % _MOST_KINDS


def around_text(event: bytes) -> tuple[bytes, bytes] | None:
    """
    What stands around the text of `event` (one line and its blank one) and of its successors; None if that cannot be
    told.

    An event with the same around it carries tokens iff its text is not empty: one with more in it, such as a second
    choice, is none of these.

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
                return before, after
    return None


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


def _past(characters: re.Pattern[bytes], event: bytes, at: int) -> int:
    """Where the characters at `at` end; 0 if there are none of these."""
    found = characters.match(event, at)
    return 0 if found is None else found.end()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


_ESCAPED: Final = b'"\\/bfnrt'
