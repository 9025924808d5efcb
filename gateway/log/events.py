"""
Where events are written: one line each, JSON for machines or text for people.

structlog without its global configuration: an `EventLog` is constructed once and passed on, so that two of them (two
tests, two servers in one process) never share anything. Nothing here may be given header values or keys, and bodies
only where the configuration says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, Literal

import msgspec
import structlog

from gateway.clock import Clock
from gateway.log.line_payload import RequestLine, line_fields
from gateway.log.lines import LineQueue, piece_bytes_for, writer_to
from gateway.log.repeats import Repeats
from gateway.log.request_line import readable, request_line
from gateway.record import ExchangeRecord
from gateway.types import Outcome

Level = Literal["info", "warning", "error"]
Style = Literal["json", "text"]
_QUIET_OUTCOMES: Final = frozenset({Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED, Outcome.REJECTED})

# Formatting a number takes longer than anything else in a time stamp.
_MILLISECONDS: Final = [f"{number:03d}Z" for number in range(1000)]


class EventLog:
    """
    Writes events.

    A warning or an error that was written ten times within a minute is counted from then on, and told as one `repeated`
    line when the minute is over. Request lines are never left out: their sums must be those of the metrics.

    Args:
        write: Takes one whole line, newline included; must not block.
        clock: Wall time for the time stamps, and for the minute.
        style: `json` or `text`.
        context: Fields of every line, such as the slot of a gateway process.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        clock: Clock,
        style: Style = "json",
        context: Mapping[str, object] | None = None,
    ) -> None:
        self._clock = clock
        self._write = write
        self._style = style
        self._context = dict(context or {})
        self._context_json = _encode(self._context)[1:-1] + b"," if self._context else b""
        self._second = (-1, "")
        self._millisecond = (-1, b"")
        self._repeats = Repeats(clock)
        self._queue: LineQueue | None = None
        self._render = _render_json if style == "json" else _render_text
        self._logger = structlog.BoundLogger(
            _LineWriter(write), processors=[self._stamp, self._render], context=self._context
        )

    @classmethod
    def to_file(
        cls,
        file: BinaryIO,
        clock: Clock,
        style: Literal["auto", "json", "text"] = "auto",
        context: Mapping[str, object] | None = None,
    ) -> EventLog:
        """
        Write to an open file, from a thread of its own; `auto` means text on a terminal and JSON elsewhere. To be
        closed at the end.

        A reader that is slow or gone, or a full disk, costs lines (`dropped`), never requests.
        """
        if style == "auto":
            style = "text" if file.isatty() else "json"
        queue = LineQueue(writer_to(file), lambda count: log._gap(count), piece_bytes_for(file))
        log = cls(queue.put, clock, style, context)
        log._queue = queue
        return log

    @property
    def dropped(self) -> int:
        """Lines lost so far."""
        return self._queue.dropped if self._queue is not None else 0

    def event(self, name: str, /, *, level: Level = "info", **fields: object) -> None:
        """Write one event: a constant name, and fields."""
        if level == "info" or self._repeats.tells((name, *_identity(fields))):
            getattr(self._logger, level)(name, **fields)

    def request(self, record: ExchangeRecord) -> None:
        """The canonical line of one exchange."""
        level: Level = "info" if record.outcome in _QUIET_OUTCOMES else "warning"
        if self._style == "text":
            self._write(self._request_for_people(level, record))
            return
        # Past structlog: this is the one line that every request pays for, at high rates many of a millisecond.
        now_ms = int(self._clock.unix() * 1000)
        known, time = self._millisecond
        if now_ms != known:
            time = self._time().encode("ascii")
            self._millisecond = (now_ms, time)
        head = b'{"time":"%b","level":"%b","event":"request",%b' % (
            time,
            b"info" if level == "info" else b"warning",
            self._context_json,
        )
        self._write(head + _encode_line(request_line(record))[1:] + b"\n")

    def close(self) -> None:
        """Write what is left, within a second. Idempotent."""
        self._tell_repeats(all_of_them=True)
        if self._queue is not None:
            self._queue.close()

    def _request_for_people(self, level: Level, record: ExchangeRecord) -> bytes:
        fields: dict[str, object] = {"request_id": record.request_id}
        if record.body:
            fields["body"] = record.body.decode(errors="replace")
        tail = " ".join(f"{name}={_text(value)}" for name, value in fields.items())
        line = f"{self._time()} {level:<7} {_printable(readable(record))}  {tail}"
        return line.encode(errors="backslashreplace") + b"\n"

    def _gap(self, count: int) -> bytes:
        """The line that stands for lines that were dropped; called by the writing thread."""
        stamp = datetime.fromtimestamp(self._clock.unix(), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        event = {"time": stamp, "level": "warning", "event": "log_lines_dropped", **self._context, "lines": count}
        return self._render(None, "warning", event)

    def _tell_repeats(self, *, all_of_them: bool = False) -> None:
        for key, count in self._repeats.over(all_of_them=all_of_them):
            name, *words = key if isinstance(key, tuple) else (str(key),)
            self._logger.warning("repeated", of=name, times=count, **dict(words))

    def _stamp(self, logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {"time": self._time(), "level": method, "event": event.pop("event"), **event}

    def _time(self) -> str:
        """Now, in UTC, with milliseconds; the calendar, and what else is due, is looked at once a second."""
        now_ms = int(self._clock.unix() * 1000)
        second, milliseconds = divmod(now_ms, 1000)
        known, text = self._second
        if second != known:
            text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
            # In one step: another thread may be here too.
            self._second = (second, text)
            self._tell_repeats()
        return text + _MILLISECONDS[milliseconds]


def _identity(fields: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """What makes two errors of one name the same: their words and numbers, but no measurements."""
    return tuple((name, value) for name, value in fields.items() if isinstance(value, str | int))


class _LineWriter:
    """structlog's wrapped logger: each level takes a rendered line."""

    __slots__ = ("error", "info", "warning")

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.info = write
        self.warning = write
        self.error = write


def _encode_other(value: object) -> str:
    """Paths, exceptions and the like are written as their text."""
    return str(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_encode_other)


def _encode_line(line: RequestLine) -> bytes:
    try:
        return _ENCODER.encode(line)
    except UnicodeEncodeError:
        return _encode(line_fields(line))


def _encode(event: Mapping[str, object]) -> bytes:
    try:
        return _ENCODER.encode(event)
    except UnicodeEncodeError:
        # A file name that is no UTF-8 arrives with lone surrogates, which JSON cannot carry.
        return _ENCODER.encode({name: _without_surrogates(value) for name, value in event.items()})


def _render_json(logger: object, method: str, event: MutableMapping[str, Any]) -> bytes:
    return _encode(event) + b"\n"


def _render_text(logger: object, method: str, event: MutableMapping[str, Any]) -> bytes:
    fields = dict(event)
    head = f"{fields.pop('time')} {fields.pop('level'):<7} {fields.pop('event')}"
    tail = " ".join(f"{name}={_text(value)}" for name, value in fields.items())
    return f"{head} {tail}".rstrip().encode(errors="backslashreplace") + b"\n"


def _without_surrogates(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode(errors="backslashreplace").decode()


def _printable(text: str) -> str:
    """The text with what could forge a line, or upset a terminal, written as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _text(value: object) -> str:
    """One field of a text line: bare when it is one printable word, else as JSON, so that no value can forge a line."""
    plain = str(value)
    if (
        plain
        and plain.isprintable()
        and not any(mark in plain for mark in ' "=')
        and not isinstance(value, list | tuple)
    ):
        return plain
    return json.dumps(value, default=str)
