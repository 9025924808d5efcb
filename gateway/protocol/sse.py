"""
Server-sent events: cutting a byte stream into events, whatever its line ends and wherever it is cut.

The splitter keeps at most one event, up to a cap, and looks at each byte once.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

EVENT_CAP: Final = 256 * 1024
"""Bytes of one event that are kept for looking inside."""

HEARTBEAT = b": keep-alive\n\n"
"""The only bytes that every client passes over; may be written between events, never inside one."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """
    One complete event with data.

    `name` is the `event:` field, b"" without; `data` the data lines joined by newlines. An event larger than the cap is
    `oversized`: its data are dropped, its name is kept if it came first.
    """

    name: bytes
    data: bytes
    oversized: bool


class EventSplitter:
    """
    Feed it bytes, get complete events. Comments, `id:` and `retry:` lines and events without data are passed over.

    LF, CRLF and CR end a line; a byte order mark may come first; `data:` may lack its space; an event is complete at
    its blank line (SSE: what has none at the end of the stream is lost).
    """

    __slots__ = ("_after_cr", "_cap", "_data", "_line", "_name", "_oversized", "_partial", "_size", "_started")

    def __init__(self, cap: int = EVENT_CAP) -> None:
        self._cap = cap
        self._started = False
        self._after_cr = False
        # The unfinished line: its bytes (dropped beyond the cap) and whether it has any at all.
        self._line = bytearray()
        self._partial = False
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0
        self._oversized = False

    @property
    def idle(self) -> bool:
        """Nothing of an event has been received, not even a line end that the next byte might complete."""
        return not (self._partial or self._data or self._name or self._oversized or self._after_cr)

    @property
    def at_boundary(self) -> bool:
        """No event is partially received: bytes of another origin may be put in between now."""
        return not (self._partial or self._data or self._name or self._oversized)

    def feed(self, data: bytes) -> list[Event]:
        """The events completed by these bytes."""
        if not data:
            return []
        if not self._started:
            data = self._skip_mark(data)
        if self._after_cr:
            self._after_cr = False
            if data[:1] == b"\n":
                data = data[1:]
        # str.splitlines is no help: it knows line ends that SSE does not have.
        lines = _LINE_END.split(data) if data.find(b"\r") >= 0 else data.split(b"\n")
        self._after_cr = data[-1:] == b"\r"
        events: list[Event] = []
        last = lines.pop()
        for line in lines:
            if self._partial:
                line = self._finish_line(line)
            if line:
                self._take(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        if last:
            self._keep(last)
        return events

    def _skip_mark(self, data: bytes) -> bytes:
        """A byte order mark is skipped; it may arrive in pieces."""
        data = bytes(self._line) + data
        self._line.clear()
        self._partial = False
        self._size = 0
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._keep(data)
            return b""
        self._started = True
        return data.removeprefix(_BOM)

    def _keep(self, piece: bytes) -> None:
        """Remember the beginning of a line, within the cap."""
        self._partial = True
        self._size += len(piece)
        if self._size <= self._cap:
            self._line += piece
        elif (self._line[:1] or piece[:1]) == b":":
            # An endless comment says nothing about the event it stands in.
            self._size -= len(self._line) + len(piece) - 1
            self._line[:] = b":"
        else:
            self._drop()

    def _finish_line(self, rest: bytes) -> bytes:
        line = bytes(self._line) + rest
        self._size -= len(self._line)
        self._line.clear()
        self._partial = False
        # An oversized line has lost its beginning, and with it its meaning; it must only not look empty.
        return line or b":"

    def _drop(self) -> None:
        self._oversized = True
        self._line.clear()
        self._data.clear()
        self._size = self._cap + 1

    def _take(self, line: bytes) -> None:
        if self._oversized:
            return
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + 1
            self._data.append(value)
            if self._size > self._cap:
                self._drop()
        elif name == b"event" and colon:
            self._name = value

    def _dispatch(self) -> Event | None:
        event = None
        if self._data or self._oversized:
            event = Event(self._name, b"\n".join(self._data), self._oversized)
        self._name = b""
        self._data.clear()
        self._size = 0
        self._oversized = False
        return event
