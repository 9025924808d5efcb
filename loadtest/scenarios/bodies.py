"""Request bodies: the JSON of a streamed chat, and the check that it fits into the model's context."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from loadtest.scenarios.base import Context, Request
from loadtest.target import UsageError

CHAT_PATH = "/v1/chat/completions"

Messages = Sequence[Mapping[str, Any]]
Ending = Literal["fixed", "free"]
"""Whether an answer has exactly the tokens asked for, or ends when the model ends it (at most that many)."""


def chat_request(
    context: Context,
    messages: Messages,
    output_tokens: int,
    ending: Ending,
    *,
    kind: str,
    tenant: str | None = None,
    api_key: str | None = None,
    cancel_after_events: int | None = None,
    cancel_after_s: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Request:
    """A streamed chat request with usage at its end."""
    stream_options = {"include_usage": True}
    if context.continuous_usage:
        stream_options["continuous_usage_stats"] = True
    body: dict[str, Any] = {
        "model": context.model,
        "messages": messages,
        "max_tokens": output_tokens,
        "temperature": context.temperature,
        "stream": True,
        "stream_options": stream_options,
    }
    if ending == "fixed" and context.forces_length:
        body |= {"ignore_eos": True, "min_tokens": output_tokens}
    return Request(
        path=CHAT_PATH,
        body=compact({**body, **(extra or {})}),
        stream=True,
        kind=kind,
        tenant=tenant,
        api_key=api_key,
        cancel_after_events=cancel_after_events,
        cancel_after_s=cancel_after_s,
    )


def compact(value: object) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def user(text: str) -> dict[str, str]:
    """A user message."""
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    """A system message."""
    return {"role": "system", "content": text}


def assistant(text: str) -> dict[str, str]:
    """An assistant message."""
    return {"role": "assistant", "content": text}


def check_fits(context: Context, scenario: str, prompt_tokens: int, output_tokens: int) -> None:
    """
    Refuses lengths that the model cannot take, before any load is sent.

    Raises:
        UsageError: the longest prompt (template included) and answer together exceed the model's context.
    """
    room = context.max_model_len
    if room is not None and prompt_tokens + output_tokens > room:
        raise UsageError(
            f"{scenario}: expected prompt and answer within {context.model}'s context of {room} tokens, found up to "
            f"{prompt_tokens} + {output_tokens}: set smaller lengths (--option NAME=TOKENS) or serve it with a longer "
            "context (max_model_len)"
        )
