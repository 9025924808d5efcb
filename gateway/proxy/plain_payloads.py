"""Typed decoders of answers that are not streamed."""

from __future__ import annotations

import msgspec


class Details(msgspec.Struct):
    """Of the prompt's tokens."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """OpenAI's and Anthropic's names."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens_details: Details | None = None
    cache_read_input_tokens: int | None = None


class Choice(msgspec.Struct):
    """One alternative of the answer."""

    finish_reason: str | None = None


class Body(msgspec.Struct):
    """A whole answer, as far as it is read."""

    usage: Usage | None = None
    choices: list[Choice] | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    object: str | None = None


BODY = msgspec.json.Decoder(Body)
USAGE = msgspec.json.Decoder(Usage)
