"""Takes out of a relayed stream the one event that the client did not ask for: the usage event we forced."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway.protocol.sse import EVENT_CAP, EventSplitter
from gateway.protocol.stream_payloads import CANDIDATE

HELD_BYTES: Final = 4 * 1024
"""Most of an event's beginning that is held back; an event that is longer and undecided passes."""

_CHOICES: Final = b'"choices"'
_EMPTY_LIST: Final = b":[]"
_SPACE: Final = rb"[ \t\r\n]*+"
_SOME_CHOICE: Final = re.compile(_CHOICES + _SPACE + rb":" + _SPACE + rb"\[" + _SPACE + rb"[^ \t\r\n\]]").search
# CRLF is one line end, never two: hence atomic.
_EVENT_END: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LINE_END_AT_END: Final = re.compile(rb"(?:\r\n|\r|\n)\Z")


class UsageFilter:
    """
    Drops every event whose `choices` is an empty list and whose `usage` is an object; all else passes byte for byte.

    Only the start of an event that may still be such a one is held, at most `HELD_BYTES` of it.
    """

    __slots__ = ("_dropped_last", "_held", "_lf_due", "_passing", "_tail")

    def __init__(self) -> None:
        self._held = b""
        # In the middle of an event that passes; `_tail` is the line end its forwarded part ends with, if any.
        self._passing = False
        self._tail = b""
        # The last event ended in CR: an LF that follows belongs to it and shares its fate.
        self._lf_due = False
        self._dropped_last = False

    @property
    def idle(self) -> bool:
        """Between two events, with nothing held: events that do not concern the filter may be passed by it."""
        return not (self._held or self._passing or self._lf_due)

    def feed(self, data: bytes) -> bytes:
        """The bytes to forward now; empty when all are held or dropped."""
        if (
            data.endswith(b"\n\n")
            and not (self._held or self._passing or self._lf_due)  # `idle`, without the call
            and not _names_no_choices(data)
        ):
            return data
        return self._sift(data)

    def flush(self) -> bytes:
        """What is still held when the stream ends."""
        held, self._held = self._held, b""
        return held

    def _sift(self, data: bytes) -> bytes:
        out: list[bytes] = []
        if self._lf_due and data:
            self._lf_due = False
            if data[:1] == b"\n":
                out += [] if self._dropped_last else [b"\n"]
                data = data[1:]
        data = self.flush() + data
        position = 0
        only_lf = data.find(b"\r") < 0
        while position < len(data):
            end = self._event_end(data, position, only_lf=only_lf)
            piece = data[position : len(data) if end is None else end]
            if self._passing:
                out.append(piece)
                self._remember(piece, ended=end is not None)
            elif end is not None:
                self._dropped_last = _is_usage_only(piece)
                if not self._dropped_last:
                    out.append(piece)
            elif len(piece) <= HELD_BYTES and _SOME_CHOICE(piece) is None:
                self._held = piece
            else:
                out.append(piece)
                self._remember(piece, ended=False)
            position += len(piece)
            self._lf_due = end == len(data) and data.endswith(b"\r")
        return b"".join(out)

    def _event_end(self, data: bytes, position: int, *, only_lf: bool) -> int | None:
        if self._passing and self._tail:
            match = _EVENT_END.match(self._tail + data[position : position + 4])
            if match is not None:
                return position + match.end() - len(self._tail)
        if only_lf:
            # As most streams are: found at the speed of memory, and a search of expressions looks at each byte.
            blank = data.find(b"\n\n", position)
            return None if blank < 0 else blank + 2
        match = _EVENT_END.search(data, position)
        return None if match is None else match.end()

    def _remember(self, piece: bytes, *, ended: bool) -> None:
        if ended:
            self._passing, self._tail, self._dropped_last = False, b"", False
            return
        self._passing = True
        line_end = _LINE_END_AT_END.search(self._tail + piece[-2:] if len(piece) < 2 else piece[-2:])
        self._tail = b"" if line_end is None else line_end[0]


def _names_no_choices(data: bytes) -> bool:
    """Whether an empty list of choices stands anywhere."""
    at = data.find(_CHOICES)
    while at >= 0:
        at += len(_CHOICES)
        if _empty_list_at(data, at):
            return True
        at = data.find(_CHOICES, at)
    return False


def _empty_list_at(data: bytes, at: int) -> bool:
    """Whether a colon and an empty list follow, spaced in any way. Compiled, a loop over bytes beats an expression."""
    for wanted in _EMPTY_LIST:
        while at < len(data) and (data[at] == 32 or 9 <= data[at] <= 10 or data[at] == 13):
            at += 1
        if at >= len(data) or data[at] != wanted:
            return False
        at += 1
    return True


def _is_usage_only(event: bytes) -> bool:
    if not _names_no_choices(event):
        return False
    alone = event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event.find(b"\r") < 0
    if alone and len(event) <= EVENT_CAP:
        payload = event[6:-2]
    else:
        found = EventSplitter().feed(event)
        if not found:
            return False
        payload = found[0].data
    try:
        return not CANDIDATE.decode(payload).choices
    except (msgspec.DecodeError, RecursionError):
        return False
