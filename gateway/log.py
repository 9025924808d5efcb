"""
The log: named events with fields, one line each, JSON for machines or text for people.

structlog without its global configuration: an `EventLog` is constructed once and passed on, so that two of them (two
tests, two servers in one process) never share anything. Nothing here may be given header values, bodies or keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal

import msgspec
import structlog

from gateway.clock import Clock
from gateway.types import ExchangeRecord, Outcome, Stage

Level = Literal["info", "warning", "error"]
_QUIET_OUTCOMES = frozenset({Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED, Outcome.REJECTED})


class EventLog:
    """
    Writes events.

    Args:
        write: Takes one whole line, newline included.
        clock: Wall time for the time stamps.
        style: `json` or `text`.
        context: Fields of every line, such as the slot of a gateway process.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        clock: Clock,
        style: Literal["json", "text"] = "json",
        context: Mapping[str, object] | None = None,
    ) -> None:
        self._clock = clock
        self._write = write
        self._style = style
        self._context = dict(context or {})
        self._context_json = _encode(self._context)[1:-1] + b"," if self._context else b""
        self._second = -1
        self._second_text = ""
        self._logger = structlog.BoundLogger(
            _LineWriter(write),
            processors=[self._stamp, _render_json if style == "json" else _render_text],
            context=self._context,
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
        Write to an open file, a line at a time; `auto` means text on a terminal and JSON elsewhere.

        A reader that went away or a full disk costs lines, never requests.
        """
        if style == "auto":
            style = "text" if file.isatty() else "json"
        return cls(FileLines(file).write, clock, style, context)

    def bind(self, **fields: object) -> EventLog:
        """A log whose every line carries further fields."""
        return EventLog(self._write, self._clock, self._style, {**self._context, **fields})

    def event(self, name: str, /, *, level: Level = "info", **fields: object) -> None:
        """Write one event: a constant name, and fields."""
        getattr(self._logger, level)(name, **fields)

    def request(self, record: ExchangeRecord) -> None:
        """The canonical line of one exchange: what it was, how it ended, how long each part took, in milliseconds."""
        level: Level = "info" if record.outcome in _QUIET_OUTCOMES else "warning"
        if self._style == "text":
            getattr(self._logger, level)("request", **request_fields(record))
            return
        # Past structlog: this is the one line that every request pays for.
        head = b'{"time":"%b","level":"%b","event":"request",%b' % (
            self._time().encode("ascii"),
            level.encode("ascii"),
            self._context_json,
        )
        self._write(head + _encode(request_fields(record))[1:] + b"\n")

    def _stamp(self, logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {"time": self._time(), "level": method, "event": event.pop("event"), **event}

    def _time(self) -> str:
        """Now, in UTC, with milliseconds; the calendar is asked once a second."""
        now_ms = int(self._clock.unix() * 1000)
        second, milliseconds = divmod(now_ms, 1000)
        if second != self._second:
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._second_text}{milliseconds:03d}Z"


def request_fields(record: ExchangeRecord) -> dict[str, object]:
    """The fields of an exchange's canonical line; those that were never reached are left out."""
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "endpoint": record.endpoint,
        "model": record.model,
        "outcome": record.outcome,
        "status": record.status,
        "stream": record.stream,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
    }
    for name in _SAID_WHEN_ANY:
        if value := getattr(record, name):
            fields[name] = value
    for name in _SAID_WHEN_KNOWN:
        value = getattr(record, name)
        if value is not None:
            fields[name] = value
    for name, source in _TIMES:
        seconds = getattr(record, source)
        if seconds is not None:
            fields[name] = _milliseconds(seconds)
    for stage, spent_s in record.stages.items():
        fields[_STAGE_NAMES[stage]] = _milliseconds(spent_s)
    return fields


_SAID_WHEN_ANY = (
    "tenant",
    "worker",
    "upstream_request_id",
    "attempts",
    "policy",
    "decision",
    "events",
    "error_code",
    "rejection",
    "detail",
    "retries",
    "finish_reasons",
)
_SAID_WHEN_KNOWN = ("prompt_tokens", "cached_tokens", "output_tokens", "disconnect")
_TIMES = (("duration_ms", "duration_s"), ("ttft_ms", "ttft_s"), ("tpot_ms", "tpot_s"))
_STAGE_NAMES = {stage: f"{stage}_ms" for stage in Stage}


def _milliseconds(seconds: float) -> float:
    """To the microsecond. Cheaper than `round`, whose decimal arithmetic nobody needs here."""
    return int(seconds * 1_000_000 + 0.5) / 1000


class FileLines:
    """Whole lines into a file; a line that cannot be written is counted in `lost` and left out."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.lost = 0

    def write(self, line: bytes) -> None:
        """Write one line and flush it."""
        try:
            self._file.write(line)
            self._file.flush()
        except (OSError, ValueError):  # ValueError: the file was closed
            self.lost += 1


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


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_other)


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


def _without_surrogates(value: object) -> str:
    return str(value).encode(errors="backslashreplace").decode()


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
