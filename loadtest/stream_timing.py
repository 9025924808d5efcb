"""
Timing of one streamed answer, pure: fed with (time, data) pairs, it knows what counts as a token and how it ended.

Definitions: a token-bearing event has text, reasoning text or a piece of a tool call in it; role-only, empty, usage and
comment events have none. TTFT is the first token-bearing event after sending. A gap lies between two token-bearing
events. Times are seconds of one monotonic clock, taken when the bytes were read and before they were parsed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import msgspec

from loadtest.chunks import Choice, Chunk, Usage
from loadtest.outcomes import Outcome

_decode = msgspec.json.Decoder(Chunk).decode


@dataclass(slots=True)
class StreamTimer:
    """What is known about a stream so far."""

    first_at: float | None = None
    first_visible_at: float | None = None
    last_at: float | None = None
    gaps: array[float] = field(default_factory=lambda: array("d"))
    """An array, since the garbage collector would look at every item of a list."""
    other_choices: list[float] = field(default_factory=list)
    """Times of events with a choice and no token."""
    token_events: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    error: str | None = None
    malformed: str | None = None
    done: bool = False
    _chunk_tokens: list[int] = field(default_factory=list)
    _told: int = 0

    def event(self, now: float, data: bytes) -> None:
        """Takes one event; what comes after [DONE] does not count."""
        if self.done:
            return
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.malformed = self.malformed or data[:200].decode(errors="replace")
            return
        error = chunk.error_text()
        if error is not None:
            self.error = self.error or error
            return
        if chunk.usage is not None:
            self.usage(chunk.usage)
        if chunk.choices:
            self._choices(now, chunk.choices, chunk.usage)

    def usage(self, usage: Usage) -> None:
        """Takes counts by the server; the last ones count."""
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _choices(self, now: float, choices: list[Choice], usage: Usage | None) -> None:
        bearing = visible = False
        for choice in choices:
            delta = choice.delta
            text = choice.text if delta is None else delta.content
            if text:
                bearing = visible = True
                if choice.index == 0:
                    self.pieces.append(str(text))
            elif delta is not None and delta.bears_token():
                bearing = True
            if choice.finish_reason is not None:
                self.finish_reasons[choice.index] = choice.finish_reason
        if not bearing:
            self.other_choices.append(now)
            return
        if self.last_at is None:
            self.first_at = now
        else:
            self.gaps.append(now - self.last_at)
        if visible and self.first_visible_at is None:
            self.first_visible_at = now
        self.last_at = now
        self.token_events += 1
        if usage is not None and usage.completion_tokens is not None:
            self._chunk_tokens.append(usage.completion_tokens - self._told)
            self._told = usage.completion_tokens

    @property
    def chunk_tokens(self) -> list[int]:
        """Tokens that came with each token-bearing event; empty unless the server told them with every one."""
        return self._chunk_tokens if len(self._chunk_tokens) == self.token_events else []

    @property
    def text(self) -> str:
        """The visible text of the first choice so far."""
        return "".join(self.pieces)

    @property
    def finish_reason(self) -> str | None:
        """Of the first choice that ended."""
        return next(iter(self.finish_reasons.values()), None)

    def outcome(self, *, body_complete: bool) -> tuple[Outcome, str]:
        """How a 200 stream ended, with a detail for people."""
        if self.error is not None:
            return Outcome.IN_BAND_ERROR, self.error
        if self.malformed is not None:
            return Outcome.MALFORMED, f"an event is no JSON object of a stream: {self.malformed}"
        if not self.done:
            how = "without [DONE]" if body_complete else "in the middle of its body"
            return Outcome.TRUNCATED, f"the stream ended {how} after {self.token_events} token events"
        if "abort" in self.finish_reasons.values():
            return Outcome.ABORTED, f"finish_reason abort after {self.token_events} token events"
        if not self.token_events:
            detail = "the stream ended properly without a token"
            if self.output_tokens:
                detail += (
                    f", though the server counted {self.output_tokens}: random weights (load_format: dummy) often say "
                    "nothing at temperature 0, try --temperature 1"
                )
            return Outcome.TOKENLESS, detail
        return Outcome.OK, ""
