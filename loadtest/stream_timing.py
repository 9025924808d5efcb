"""
Timing of one streamed answer, pure: fed with (time, data) pairs, it knows what counts as a token and how it ended.

Definitions: a token-bearing event has text, reasoning text or a piece of a tool call in it; role-only, empty, usage and
comment events have none. TTFT is the first token-bearing event after sending. A gap lies between two token-bearing
events. TPOT is (last - first) / (tokens - tokens in the first event), tokens from the server's usage. Times are seconds
of one monotonic clock, taken when the bytes were read and before they were parsed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from loadtest.outcomes import Outcome

_TEXT_FIELDS = ("content", "reasoning", "reasoning_content", "refusal")


@dataclass(slots=True)
class StreamTimer:
    """What is known about a stream so far."""

    first_at: float | None = None
    first_visible_at: float | None = None
    last_at: float | None = None
    gaps: list[float] = field(default_factory=list)
    token_events: int = 0
    first_event_tokens: int = 1
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)
    error: str | None = None
    malformed: str | None = None
    done: bool = False

    def event(self, now: float, data: bytes) -> None:
        """Takes one event; what comes after [DONE] does not count."""
        if self.done:
            return
        if data == b"[DONE]":
            self.done = True
            return
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self.malformed = self.malformed or data[:200].decode(errors="replace")
            return
        error = value.get("error")
        if error or value.get("object") == "error":
            self.error = self.error or _message(error if error else value)
            return
        usage = value.get("usage")
        if isinstance(usage, dict):
            self._usage(usage)
        self._choices(now, value.get("choices") or (), usage)

    def _usage(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
        self.output_tokens = usage.get("completion_tokens", self.output_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = details.get("cached_tokens", self.cached_tokens)

    def _choices(self, now: float, choices: Any, usage: dict[str, Any] | None) -> None:
        bearing = visible = False
        for choice in choices:
            delta = choice.get("delta") or choice
            seen = bool(delta.get("content") or choice.get("text"))
            visible = visible or seen
            bearing = bearing or seen or _bears_token(delta)
            if choice.get("finish_reason"):
                self.finish_reasons[choice.get("index", 0)] = choice["finish_reason"]
        if not bearing:
            return
        if self.last_at is None:
            self.first_at = now
            if usage:
                self.first_event_tokens = max(1, usage.get("completion_tokens", 1))
        else:
            self.gaps.append(now - self.last_at)
        if visible and self.first_visible_at is None:
            self.first_visible_at = now
        self.last_at = now
        self.token_events += 1

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds, or None when the usage is missing or tells of no token after the first event."""
        if self.first_at is None or self.last_at is None or self.output_tokens is None:
            return None
        later = self.output_tokens - self.first_event_tokens
        return (self.last_at - self.first_at) / later if later > 0 else None

    def outcome(self, *, body_complete: bool) -> tuple[Outcome, str]:
        """How a 200 stream ended, with a detail for people."""
        if self.error is not None:
            return Outcome.IN_BAND_ERROR, self.error
        if self.malformed is not None:
            return Outcome.MALFORMED, f"an event is no JSON object: {self.malformed}"
        if not self.done:
            how = "without [DONE]" if body_complete else "in the middle of its body"
            return Outcome.TRUNCATED, f"the stream ended {how} after {self.token_events} token events"
        if "abort" in self.finish_reasons.values():
            return Outcome.ABORTED, f"finish_reason abort after {self.token_events} token events"
        if not self.token_events:
            return Outcome.TOKENLESS, "the stream ended properly without a token"
        return Outcome.OK, ""


def _bears_token(delta: dict[str, Any]) -> bool:
    if any(delta.get(name) for name in _TEXT_FIELDS):
        return True
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        if function.get("arguments") or function.get("name"):
            return True
    return False


def _message(error: Any) -> str:
    if isinstance(error, dict):
        return f"{error.get('code')}: {error.get('message')}"
    return str(error)
