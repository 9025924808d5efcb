"""
What every client runs, what must come out of it, and where the gateway differs from a bare worker on purpose.

Whatever is not named in `INTENDED` must be identical direct and through the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.sdk.scripted_worker import TEXT, TOKENS

_COMMON = (
    *("stream", "whole", "error_404", "error_400_context", "error_429", "retry_429", "retry_503", "abandoned"),
    *("in_band_error", "cut", "unfinished"),
)
_OPENAI = (
    *(*_COMMON, "stream_usage", "tools", "several", "completions", "embeddings", "models", "model_with_slash"),
    *("responses_stream", "request_id"),
)

OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "openai_sync": (
        *(*_OPENAI, "stream_reasoning", "stream_byte_by_byte", "whole_tools", "responses", "responses_unfinished"),
        "retry_503_one_worker",
    ),
    "openai_async": _OPENAI,
    "node": (*_OPENAI, "stream_byte_by_byte", "responses"),
    "anthropic_sync": (*_COMMON, "accumulated", "count_tokens", "request_id"),
    "langchain_chat": (
        *(*_COMMON, "stream_usage", "stream_async", "tools", "several", "responses", "responses_stream"),
        "embeddings",
    ),
    "litellm_client": (*_COMMON, "stream_usage", "stream_async", "tools", "several", "embeddings", "stream_again"),
}
"""Operations by client program."""

TRUNCATED = TOKENS[:2]

FRAGMENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "stream",
            "stream_usage",
            "stream_async",
            "stream_again",
            "stream_byte_by_byte",
            "completions",
            "responses_stream",
        ),
        TOKENS,
    ),
    **dict.fromkeys(("whole", "retry_429", "retry_503", "retry_503_one_worker", "responses", "accumulated"), (TEXT,)),
    "stream_reasoning": ("Let me ", "think.", *TOKENS),
    "several": (TEXT, TEXT),
    "tools": ("Paris", "CET"),
    "whole_tools": ("Paris", "CET"),
    "embeddings": ("0.25, -0.5, 3", "0.25, -0.5, 3"),
    "models": ("sim", "org/sim"),
    "model_with_slash": ("org/sim",),
    "count_tokens": ("22",),
    "error_404": ("404", "nope"),
    "error_400_context": ("maximum context length is 1024",),
    "error_429": ("slow down",),
    "in_band_error": TRUNCATED,
    "cut": TRUNCATED,
    "unfinished": TRUNCATED,
}
"""What the JSON of a result must contain, in this order, wherever it came from."""

FAILS = frozenset({"error_404", "error_400_context", "error_429", "in_band_error", "cut", "unfinished"})
"""Operations that must end in an exception of the SDK through the gateway. No other may."""

PAUSES_S: Mapping[str, float] = {"retry_429": 0.9}
"""Operations that take at least so long, because the SDK honours Retry-After."""


@dataclass(frozen=True)
class Intended:
    """A difference on purpose: `expected` makes the result through the gateway out of the direct one."""

    expected: Callable[[Any], Any]
    reason: str


def _with(**changed: Any) -> Callable[[Any], Any]:
    return lambda direct: {**direct, **changed}


def _saying(old: str, new: str) -> Callable[[Any], Any]:
    return lambda direct: {**direct, "message": direct["message"].replace(old, new)}


_INCOMPLETE = "The answer ended before it was complete."
_STREAM_FAILED = {
    **{"error": "APIError", "status": None, "code": "stream_incomplete", "type": "server_error", "param": None},
    **{"message": _INCOMPLETE, "retry_after": None},
}
_MESSAGE_FAILED = {
    **{"error": "APIStatusError", "status": 200, "code": None, "type": "api_error", "param": None},
    **{"message": _INCOMPLETE, "retry_after": None},
}
_NOT_FOUND = "The model 'nope' does not exist. GET /v1/models lists the models."

_CODES = "vLLM's code is the status as an integer and its type a Python class; programs look for OpenAI's words"
_OWN_404 = "the gateway knows its models and asks no worker; OpenAI's words, and where to find the right name"
_ENVELOPE = "vLLM answers in OpenAI's envelope; Anthropic's clients look for the type in theirs"
_BROKEN = "an error event in the family's own form instead of a broken connection, so that the SDK names the cause"
_SILENT = "direct, a stream that ends without its end looks like a success to the SDK; it must never"

_OPENAI_CLIENTS: Mapping[str, Mapping[str, Intended]] = {
    client: {
        "error_404": Intended(
            _with(code="model_not_found", type="invalid_request_error", message=_NOT_FOUND), _OWN_404
        ),
        "error_400_context": Intended(_with(code="context_length_exceeded", type="invalid_request_error"), _CODES),
        "error_429": Intended(_with(code="rate_limit_exceeded"), _CODES),
        "cut": Intended(_with(**_STREAM_FAILED), _BROKEN),
        "unfinished": Intended(_with(**_STREAM_FAILED), _SILENT),
        "request_id": Intended(lambda direct: True, "the gateway gives every answer an id, a bare worker none"),
    }
    for client in ("openai_sync", "openai_async", "node", "langchain_chat")
}

INTENDED: Mapping[str, Mapping[str, Intended]] = {
    **_OPENAI_CLIENTS,
    "openai_sync": {
        **_OPENAI_CLIENTS["openai_sync"],
        "responses_unfinished": Intended(
            lambda direct: {
                "taken": [
                    *direct["taken"],
                    {
                        **{"type": "error", "code": "stream_incomplete", "message": _INCOMPLETE, "param": None},
                        "sequence_number": len(direct["taken"]),
                    },
                ]
            },
            _SILENT,
        ),
    },
    "langchain_chat": {
        **_OPENAI_CLIENTS["langchain_chat"],
        "unfinished": Intended(
            # Direct, LangChain invents a last chunk for a stream that only stopped.
            lambda direct: {"taken": direct["taken"][:-1], **_STREAM_FAILED},
            _SILENT,
        ),
    },
    "anthropic_sync": {
        "error_404": Intended(_with(type="not_found_error", message=_NOT_FOUND), _OWN_404),
        "error_400_context": Intended(_with(type="invalid_request_error"), _ENVELOPE),
        "cut": Intended(_with(**_MESSAGE_FAILED), _BROKEN),
        "unfinished": Intended(_with(**_MESSAGE_FAILED), _SILENT),
        "request_id": Intended(lambda direct: True, "the gateway gives every answer an id, a bare worker none"),
    },
    "litellm_client": {
        "error_404": Intended(_saying("The model `nope` does not exist.", _NOT_FOUND), _OWN_404),
        "cut": Intended(_saying("Connection error.", _INCOMPLETE), _BROKEN),
        "unfinished": Intended(_saying("Stream ended before a finish_reason was received", _INCOMPLETE), _BROKEN),
    },
}
"""Every difference between a bare worker and the gateway that a client can see, by client and operation."""
