"""The shapes of stream events, as far as the observer looks; a typed decode takes under half a microsecond."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

_ABSENT = msgspec.Raw(b"")


class Function(msgspec.Struct, gc=False):
    """The growing part of a tool call."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, gc=False):
    """One entry of `delta.tool_calls`."""

    function: Function | None = None


class Delta(msgspec.Struct, gc=False):
    """`choices[].delta`; every field is output text."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct, gc=False):
    """One entry of `choices`, of chat (`delta`) or completions (`text`)."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, gc=False):
    """A chat or completions event."""

    choices: list[Choice] | None = None
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


class Candidate(msgspec.Struct):
    """An event that may be the usage event, which has no choices."""

    choices: list[msgspec.Raw]
    usage: dict[str, msgspec.Raw]


class ResponsesEvent(msgspec.Struct, gc=False):
    """An event of `/v1/responses`."""

    type: str = ""
    sequence_number: int | None = None
    delta: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


class MessagesDelta(msgspec.Struct, gc=False):
    """`delta` of `content_block_delta` and `message_delta`."""

    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    stop_reason: str | None = None


class MessagesEvent(msgspec.Struct, gc=False):
    """An event of `/v1/messages`."""

    type: str = ""
    delta: MessagesDelta | None = None
    message: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


CHUNK: msgspec.json.Decoder[Chunk] = msgspec.json.Decoder(Chunk)
CANDIDATE: msgspec.json.Decoder[Candidate] = msgspec.json.Decoder(Candidate)
RESPONSES_EVENT: msgspec.json.Decoder[ResponsesEvent] = msgspec.json.Decoder(ResponsesEvent)
MESSAGES_EVENT: msgspec.json.Decoder[MessagesEvent] = msgspec.json.Decoder(MessagesEvent)


def loads(data: bytes) -> object:
    """
    Any JSON, as leniently as Python reads it: NaN, lone surrogates; broken UTF-8 is replaced.

    Raises:
        ValueError: Not JSON, or nested too deeply to be read.
    """
    try:
        return msgspec.json.decode(data)  # several times as fast, and refuses what is rare
    except (msgspec.DecodeError, RecursionError):
        return _lenient(data)


def _lenient(data: bytes) -> object:
    try:
        found: object = json.loads(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def lenient_chunk(found: Mapping[str, object]) -> Chunk:
    """A chunk with a field of an unexpected type, read field by field; what does not fit counts as absent."""
    choices = found.get("choices")
    return Chunk(
        [_lenient_choice(choice) for choice in choices if isinstance(choice, dict)]
        if isinstance(choices, list)
        else None
    )


def _lenient_choice(choice: Mapping[str, object]) -> Choice:
    delta = choice.get("delta")
    index = choice.get("index")
    text, reason = choice.get("text"), choice.get("finish_reason")
    return Choice(
        index if isinstance(index, int) else 0,
        _lenient_delta(delta) if isinstance(delta, dict) else None,
        text if isinstance(text, str) else None,
        reason if isinstance(reason, str) else None,
    )


def _lenient_delta(delta: Mapping[str, object]) -> Delta:
    for name in ("content", "reasoning", "reasoning_content", "refusal", "tool_calls"):
        # Its text, or a list of parts with text: only whether there is any matters.
        if delta.get(name):
            return Delta("text")
    return Delta()
