"""Reads a relayed stream without ever changing it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.types import Family


class Ending(StrEnum):
    """How a stream ended, judged by its own bytes."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    ERROR = "error"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class InBandError:
    """
    An error found inside a 200 stream.

    `status` is the HTTP status it stands for (502 when it names none). `told` is False when clients do not recognise
    its form as an error (flat, not under `error`): the gateway must then tell it itself.
    """

    status: int
    message: str
    type: str
    code: str | None
    param: str | None
    told: bool


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """`detail` is for our log; `error` is set iff the ending is ERROR."""

    ending: Ending
    detail: str
    error: InBandError | None = None


class StreamObserver:
    """
    One stream's reader: `feed` it every chunk as it arrives; it never raises and never changes bytes.

    Attributes (read-only for the caller):
        events: complete events with data so far (comments are not events).
        token_events: those that carried output text (content, reasoning, tool-call text).
        done: the family's terminal marker was seen.
        error: the first in-band error, or None.
        finish_reasons: by choice index (0 for responses and messages).
        prompt_tokens, cached_tokens, output_tokens: from usage, None until told.
        malformed: events whose payload was not a JSON object.
        next_sequence: the `sequence_number` an event of ours would carry (responses).
        at_boundary: no event is partially received (a comment may be written now).
    """

    events: int
    token_events: int
    done: bool
    error: InBandError | None
    finish_reasons: dict[int, str]
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    malformed: int
    next_sequence: int

    def __init__(self, family: Family, n: int = 1) -> None:
        raise NotImplementedError

    @property
    def at_boundary(self) -> bool:
        raise NotImplementedError

    def feed(self, data: bytes) -> int:
        """Read the next bytes; returns how many of the events completed by them carry tokens."""
        raise NotImplementedError

    def verdict(self, *, clean_end: bool = True) -> StreamVerdict:
        """Judge the stream at its end; `clean_end` False when the connection broke."""
        raise NotImplementedError


class UsageFilter:
    """Drops the usage event nobody asked for (Decision 9); everything else passes byte for byte."""

    def feed(self, data: bytes) -> bytes:
        """The bytes to forward now (may be empty)."""
        raise NotImplementedError

    def flush(self) -> bytes:
        """What is still held when the stream ends."""
        raise NotImplementedError
