"""
Reads a relayed stream without ever changing it: first token, gaps, usage, finish reasons, and how it ended.

The usual chunk is exactly one event with one data line; it is recognised by three looks at its bytes and decoded by a
typed decoder, which is cheaper than searching it for markers. Everything else goes through the splitter.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from gateway.protocol import stream_payloads as payloads
from gateway.protocol.in_band import InBandError, in_band_error
from gateway.protocol.sse import EVENT_CAP, EventSplitter
from gateway.protocol.usage_filter import UsageFilter
from gateway.types import Family

__all__ = ["Ending", "InBandError", "StreamObserver", "StreamVerdict", "UsageFilter", "glance"]

# Looking up a member of an enumeration is a call of a function; these are used for every event or stream.
_CHAT: Final = Family.CHAT
_COMPLETIONS: Final = Family.COMPLETIONS
_RESPONSES: Final = Family.RESPONSES
_MESSAGES: Final = Family.MESSAGES
# The last event of a Responses stream repeats the whole answer, and the usage stands at its end.
_RESPONSES_CAP: Final = 16 * EVENT_CAP


class Ending(StrEnum):
    """How a stream ended, judged by its own bytes."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    ERROR = "error"
    ABORTED = "aborted"


_COMPLETE: Final = Ending.COMPLETE
_DONE: Final = b"[DONE]"
_ERROR: Final = b'"error"'


class StreamVerdict:
    """`detail` is for our log; `error` is set iff the ending is ERROR."""

    __slots__ = ("detail", "ending", "error")

    def __init__(self, ending: Ending, detail: str, error: InBandError | None = None) -> None:
        self.ending = ending
        self.detail = detail
        self.error = error


class StreamObserver:
    """
    One stream's reader: `feed` it every chunk as it arrives; it never raises and never changes bytes.

    Attributes (read-only for the caller):
        events: complete events with data that it was fed (comments are not events), the terminal marker included.
        token_events: those of them that carried output text (content, reasoning, tool-call text).
        done: the family's terminal marker was seen; later events are not looked at.
        error: the first in-band error, or None.
        finish_reasons: by choice index (0 for responses and messages).
        prompt_tokens, cached_tokens, output_tokens: from usage, None until told.
        malformed: events whose payload was not a JSON object.
        next_sequence: the `sequence_number` that an event of ours would carry (responses).
    """

    __slots__ = (
        "_family",
        "_idle",
        "_n",
        "_splitter",
        "cached_tokens",
        "done",
        "error",
        "events",
        "finish_reasons",
        "malformed",
        "next_sequence",
        "output_tokens",
        "prompt_tokens",
        "token_events",
    )

    def __init__(self, family: Family, n: int = 1) -> None:
        self._family = family
        self._n = n
        self._splitter = EventSplitter(_RESPONSES_CAP if family is _RESPONSES else EVENT_CAP)
        self._idle = True
        self.events = 0
        self.token_events = 0
        self.done = False
        self.error: InBandError | None = None
        self.finish_reasons: dict[int, str] = {}
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.malformed = 0
        self.next_sequence = 0

    @property
    def at_boundary(self) -> bool:
        """No event is partially received: a comment may be written now."""
        return self._idle or self._splitter.at_boundary

    def feed(self, data: bytes) -> int:
        """Read the next bytes; returns how many of the events completed by them carry tokens."""
        found = 0
        if self._idle and data.endswith(b"\n\n"):
            first = data.find(b"\n")
            start = 0
            if first != len(data) - 2 and data.startswith(b"event: "):
                start = first + 1
                first = data.find(b"\n", start)
            if first == len(data) - 2 and data.startswith(b"data: ", start):
                found = self._take(data[start + 6 : -2])
                self.token_events += found
                return found
            events = _one_line_events(data)
            if events is not None:
                for text in events:
                    found += self._take(text[6:])
                self.token_events += found
                return found
        for event in self._splitter.feed(data):
            if event.oversized:
                found += self._take_oversized(event.name)
            else:
                found += self._take(event.data)
        self._idle = self._splitter.idle
        self.token_events += found
        return found

    @property
    def takes_plain(self) -> bool:
        """`take_plain` may find what it looks for; nothing but `feed` changes that."""
        return self._idle and not self.done and self._family in _CHUNKED_FAMILIES

    def take_plain(self, text: bytes) -> int:
        """
        The short way through, for what nearly every read of a chat or completions stream holds: whole events, one
        `data:` line each, that carry a part of an answer and nothing else to note.

        Returns how many of them carry tokens, or -1: then nothing was noted, and `feed` has to read the bytes.
        """
        if not self.takes_plain or text.find(b"\r") >= 0:
            return -1
        events = text.split(b"\n\n")
        if events.pop() or not events:
            return -1
        total = 0
        for event in events:
            found = -1 if event.find(b"\n") >= 0 else glance(event)
            if found < 0:
                return -1
            total += found
        self.events += len(events)
        self.token_events += total
        return total

    def verdict(self, *, clean_end: bool = True) -> StreamVerdict:
        """
        Judge the stream at its end.

        An answer whose choices have all finished is complete even without `[DONE]`, if the connection ended cleanly:
        nothing of it can be missing but the usage. `[DONE]` alone is no answer.

        Args:
            clean_end: False when the connection broke instead of ending.
        """
        if self.error is not None:
            return StreamVerdict(Ending.ERROR, f"in-band error {self.error.status}", self.error)
        if "abort" in self.finish_reasons.values():
            return StreamVerdict(Ending.ABORTED, "the worker aborted the request")
        if self._family is _RESPONSES or self._family is _MESSAGES:
            if self.done:
                return StreamVerdict(_COMPLETE, "terminal event")
            return StreamVerdict(Ending.INCOMPLETE, "no terminal event")
        finished = len(self.finish_reasons)
        if finished < self._n:
            marker = "[DONE]" if self.done else "no [DONE]"
            return StreamVerdict(Ending.INCOMPLETE, f"{marker}, {finished} of {self._n} choices finished")
        if self.done:
            return StreamVerdict(_COMPLETE, "[DONE]")
        if clean_end:
            return StreamVerdict(_COMPLETE, "all choices finished, no [DONE]")
        return StreamVerdict(Ending.INCOMPLETE, "connection lost before [DONE]")

    def _take(self, payload: bytes) -> int:
        """Look into one event; 1 if it carries tokens."""
        if self.done:
            return 0
        self.events += 1
        if self._family is _RESPONSES:
            return self._take_responses(payload)
        if self._family is _MESSAGES:
            return self._take_messages(payload)
        if payload == _DONE:
            self.done = True
            return 0
        try:
            chunk = payloads.CHUNK.decode(payload)
        except _UNREADABLE:
            return self._take_odd_chunk(payload)
        if chunk.error or (not chunk.choices and not _is_only_usage(chunk, payload)):
            self._take_rare_chunk(payload)
        elif chunk.usage and bytes(chunk.usage) != b"null":
            self._take_usage(_loads(bytes(chunk.usage)))
        return self._take_choices(chunk)

    def _take_choices(self, chunk: payloads.Chunk) -> int:
        found = 0
        for choice in chunk.choices or ():
            delta = choice.delta
            if choice.text or (delta is not None and _carries_output(delta)):
                found = 1
            if choice.finish_reason is not None:
                self.finish_reasons[choice.index] = choice.finish_reason
        return found

    def _take_odd_chunk(self, payload: bytes) -> int:
        """JSON that only Python reads, a field of an unexpected type, or no JSON at all, such as a padded `[DONE]`."""
        if payload.strip() == _DONE:
            self.done = True
            return 0
        found = self._take_rare_chunk(payload)
        return 0 if found is None else self._take_choices(payloads.lenient_chunk(found))

    def _take_rare_chunk(self, payload: bytes) -> dict[str, object] | None:
        found = self._object(payload)
        if found is not None:
            self._take_usage(found.get("usage"))
            self._note_error(found)
        return found

    def _take_responses(self, payload: bytes) -> int:
        try:
            event = payloads.RESPONSES_EVENT.decode(payload)
        except _UNREADABLE:
            event = None
        if event is not None:
            kind, sequence = event.type, event.sequence_number
            if sequence is not None:
                self.next_sequence = sequence + 1
            if kind.endswith(".delta"):
                return int(bytes(event.delta) not in (b"", b'""', b"null"))
            if kind.startswith("response.") and kind not in _RESPONSES_TERMINAL:
                return 0
        found = self._object(payload)
        if found is not None:
            self._take_responses_end(found)
        return int(found is not None and event is None and bool(found.get("delta")))

    def _take_responses_end(self, found: dict[str, object]) -> None:
        kind = str(found.get("type"))
        if kind not in _RESPONSES_TERMINAL:
            self._note_error(found)
            return
        self.done = True
        response = found.get("response")
        if not isinstance(response, dict):
            response = {}
        self._take_usage(response.get("usage"))
        if kind == "response.failed":
            error = response.get("error")
            self.error = in_band_error({"error": error if isinstance(error, dict) else {}}, told=True)
        elif response.get("status") == "cancelled":
            self.finish_reasons[0] = "abort"
        else:
            self.finish_reasons[0] = kind.removeprefix("response.")

    def _take_messages(self, payload: bytes) -> int:
        try:
            event = payloads.MESSAGES_EVENT.decode(payload)
        except _UNREADABLE:
            found = self._object(payload)
            if found is not None:
                self._take_messages_rest(found)
            return int(found is not None and found.get("type") == "content_block_delta")
        if event.type == "content_block_delta":
            delta = event.delta
            return int(delta is not None and bool(delta.text or delta.partial_json or delta.thinking))
        if event.type == "message_stop":
            self.done = True
        elif event.type not in ("content_block_start", "content_block_stop", "ping"):
            found = self._object(payload)
            if found is not None:
                self._take_messages_rest(found)
        return 0

    def _take_messages_rest(self, found: dict[str, object]) -> None:
        kind = found.get("type")
        message = found.get("message")
        if kind == "message_stop":
            self.done = True
        elif kind == "message_start" and isinstance(message, dict):
            self._take_usage(message.get("usage"))
        elif kind == "message_delta":
            self._take_usage(found.get("usage"))
            delta = found.get("delta")
            reason = delta.get("stop_reason") if isinstance(delta, dict) else None
            if isinstance(reason, str):
                self.finish_reasons[0] = reason
        else:
            self._note_error(found)

    def _take_oversized(self, name: bytes) -> int:
        """An event beyond the cap: only its name is known. So large a one that is no end carries output."""
        if self.done:
            return 0
        self.events += 1
        kind = name.decode("utf-8", "replace")
        if kind in _RESPONSES_TERMINAL and self._family is _RESPONSES:
            self._take_responses_end({"type": kind})
            return 0
        return int(self._family is not _RESPONSES or kind.endswith(".delta"))

    def _object(self, payload: bytes) -> dict[str, object] | None:
        found = _loads(payload)
        if isinstance(found, dict):
            return found
        if payload.strip() != _DONE:
            self.malformed += 1
        return None

    def _note_error(self, found: dict[str, object]) -> None:
        error = in_band_error(found)
        if error is not None and self.error is None:
            self.error = error

    def _take_usage(self, usage: object) -> None:
        """OpenAI's and Anthropic's names; numbers only grow, so that a later event without one loses nothing."""
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
        self.prompt_tokens = _greater(self.prompt_tokens, usage.get("prompt_tokens", usage.get("input_tokens")))
        self.cached_tokens = _greater(self.cached_tokens, cached)
        self.output_tokens = _greater(self.output_tokens, usage.get("completion_tokens", usage.get("output_tokens")))


_CHUNKED_FAMILIES: Final = (_CHAT, _COMPLETIONS)
# Not the typed decoder's: strict JSON of another shape, lenient JSON, no JSON, or nested beyond the stack.
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError)
_RESPONSES_TERMINAL: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})


def _is_only_usage(chunk: payloads.Chunk, payload: bytes) -> bool:
    """Whether an event without choices tells usage and cannot be an error, however that might be spelt."""
    return bool(chunk.usage) and payload.find(_ERROR) < 0 and payload.find(b"\\") < 0


def _one_line_events(data: bytes) -> list[bytes] | None:
    """The events of a read that has whole ones only, a `data:` line each, as at the end of a stream; else None."""
    if len(data) > EVENT_CAP or data.find(b"\r") >= 0:
        return None
    events = data.split(b"\n\n")
    events.pop()
    for event in events:
        if not event.startswith(b"data: ") or event.find(b"\n") >= 0:
            return None
    return events


def glance(event: bytes, _decode: Callable[[bytes], payloads.Chunk] = payloads.CHUNK.decode) -> int:
    """1 or 0: the event (one line, without its blank one) carries tokens or none; -1: it is not plain."""
    if not event.startswith(b"data: "):
        return -1
    try:
        chunk = _decode(event[6:])
    except _UNREADABLE:
        return -1
    choices = chunk.choices
    if not choices or chunk.usage or chunk.error:
        return -1
    found = 0
    for choice in choices:
        if choice.finish_reason is not None:
            return -1
        delta = choice.delta
        if delta is None:
            if choice.text:
                found = 1
        elif delta.content or choice.text or _carries_output(delta):
            found = 1
    return found


def _loads(payload: bytes) -> object:
    try:
        return payloads.loads(payload)
    except ValueError:
        return None


def _carries_output(delta: payloads.Delta) -> bool:
    if delta.content or delta.reasoning or delta.reasoning_content or delta.refusal:
        return True
    for call in delta.tool_calls or ():
        if call.function is not None and (call.function.name or call.function.arguments):
            return True
    return False


def _greater(known: int | None, told: object) -> int | None:
    if not isinstance(told, int) or isinstance(told, bool) or told < 0:
        return known
    return told if known is None else max(known, told)
