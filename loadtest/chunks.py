"""
The parts of stream events and JSON answers that measuring needs, as types: decoding them costs a tenth of `json`.

Fields whose mere presence counts are `Any`, so that an unusual value is not an error. Everything else of an event is
skipped without being built.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Delta(msgspec.Struct, gc=False):
    """What one event adds to a choice."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None

    def bears_token(self) -> bool:
        """Whether something generated is in it: text, reasoning, a refusal, or a piece of a tool call."""
        if self.content or self.reasoning or self.reasoning_content or self.refusal:
            return True
        return bool(self.tool_calls) and isinstance(self.tool_calls, list) and any(map(_is_piece, self.tool_calls))


class Choice(msgspec.Struct, gc=False):
    """One choice: `delta` in a chat's stream, `message` in a whole chat answer, `text` in completions."""

    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: Any = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, gc=False):
    """What the prompt's tokens were."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts by the server."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event, or a whole JSON answer."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    code: Any = None
    data: Any = None

    def error_text(self) -> str | None:
        """The error it tells of, in any of the shapes that servers use; None: no error."""
        if self.error:
            return _text(self.error)
        return _text({"code": self.code, "message": self.message}) if self.object == "error" else None


def error_message(body: bytes) -> str:
    """The message in an error answer's body, or the body itself where it has none."""
    try:
        chunk = msgspec.json.decode(body, type=Chunk)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        chunk = Chunk()
    return chunk.error_text() or body.decode(errors="replace")


def _is_piece(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and bool(function.get("arguments") or function.get("name"))


def _text(error: Any) -> str:
    if isinstance(error, dict):
        code, message = error.get("code"), error.get("message")
        return str(message) if code is None else f"{code}: {message}"
    return str(error)
