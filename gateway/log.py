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
from gateway.types import ExchangeRecord, Outcome

REPEATED_WITHIN_S = 10.0
"""A repeated event is written once in so many seconds, with the number of those left out."""
MAX_REMEMBERED = 1024

Level = Literal["info", "warning", "error"]
_QUIET_OUTCOMES = frozenset({Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED, Outcome.REJECTED})


class EventLog:
    """
    Writes events. `event` always writes; `repeated` leaves out what would only say the same again.

    Args:
        write: Takes one whole line, newline included.
        clock: Wall time for the time stamps, monotonic time for the repetition limit.
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
        self._repetitions: dict[tuple[str, str], _Repetition] = {}
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

    def repeated(self, name: str, /, *, about: str, level: Level = "error", **fields: object) -> None:
        """
        Write an event that may come in thousands, once in `REPEATED_WITHIN_S` for each `about` (a worker, a listener).

        The next line that is written says in `left_out` how many were not.
        """
        now_s = self._clock.monotonic()
        key = (name, about)
        known = self._repetitions.get(key)
        if known is not None and now_s - known.written_at_s < REPEATED_WITHIN_S:
            known.left_out += 1
            return
        if known is None and len(self._repetitions) >= MAX_REMEMBERED:
            # The oldest is forgotten, so that what is remembered stays bounded whatever `about` is.
            del self._repetitions[next(iter(self._repetitions))]
        self._repetitions[key] = _Repetition(now_s)
        if known is not None and known.left_out:
            fields["left_out"] = known.left_out
        self.event(name, level=level, about=about, **fields)

    def request(self, record: ExchangeRecord) -> None:
        """The canonical line of one exchange: what it was, how it ended, how long each part took, in milliseconds."""
        level = "info" if record.outcome in _QUIET_OUTCOMES else "warning"
        getattr(self._logger, level)("request", **request_fields(record))

    def _stamp(self, logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        moment = datetime.fromtimestamp(self._clock.unix(), UTC)
        return {
            "time": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z",
            "level": method,
            "event": event.pop("event"),
            **event,
        }


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
    words = {
        "tenant": record.tenant,
        "worker": record.worker,
        "upstream_request_id": record.upstream_request_id,
        "attempts": record.attempts,
        "policy": record.policy,
        "decision": record.decision,
        "events": record.events,
        "error_code": record.error_code,
        "rejection": record.rejection,
        "detail": record.detail,
        "retries": record.retries,
        "finish_reasons": record.finish_reasons,
    }
    fields.update({name: value for name, value in words.items() if value})
    reached = {
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "disconnect": record.disconnect,
    }
    fields.update({name: value for name, value in reached.items() if value is not None})
    for name, seconds in (
        ("duration_ms", record.duration_s),
        ("ttft_ms", record.ttft_s),
        ("tpot_ms", record.tpot_s),
    ):
        if seconds is not None:
            fields[name] = round(seconds * 1000, 3)
    for stage, spent_s in record.stages.items():
        fields[f"{stage}_ms"] = round(spent_s * 1000, 3)
    return fields


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


class _Repetition:
    __slots__ = ("left_out", "written_at_s")

    def __init__(self, written_at_s: float) -> None:
        self.written_at_s = written_at_s
        self.left_out = 0


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


def _render_json(logger: object, method: str, event: MutableMapping[str, Any]) -> bytes:
    try:
        return _ENCODER.encode(event) + b"\n"
    except UnicodeEncodeError:
        # A file name that is no UTF-8 arrives with lone surrogates, which JSON cannot carry.
        return _ENCODER.encode({name: _without_surrogates(value) for name, value in event.items()}) + b"\n"


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
