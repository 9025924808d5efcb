"""
The bytes a vLLM worker puts on the wire, built from values: stream events, JSON bodies, error shapes.

Chat frames follow vLLM 0.32 byte for byte: `data: <compact JSON>`, one blank line, LF only; in-band errors come from
`json.dumps` with its default spaces. Everything is pure, so a script, the simulator and a test's expectation share it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
VERSION = "0.32.0"
FINGERPRINT = "vllm-0.32.0-799dd689"
CREATED = 1795969546

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DRAINING = "cannot schedule new futures after shutdown"
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later."


def compact(value: object) -> bytes:
    """JSON as pydantic writes it: no spaces, UTF-8 unescaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def data_event(data: bytes) -> bytes:
    """One unnamed server-sent event."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, payload: object) -> bytes:
    """One server-sent event with an `event:` line, as the Responses and Messages routes send."""
    return b"event: " + name.encode() + b"\ndata: " + compact(payload) + b"\n\n"


def usage_info(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """vLLM's usage object; `cached` appears only when the worker runs with --enable-prompt-tokens-details."""
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached, "created_cache_tokens": 0}
    return usage


def error_object(message: str, type_: str, code: int | str | None, param: str | None = None) -> dict[str, Any]:
    """vLLM's error envelope (`code` is the HTTP status as an integer, unlike OpenAI's)."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def error_event(message: str = ENGINE_DEAD, type_: str = "InternalServerError", code: int = 500) -> bytes:
    """An in-band error as vLLM sends it inside a 200 stream; DONE follows it there."""
    return data_event(json.dumps(error_object(message, type_, code)).encode())


def flat_error_event(message: str = "queue full", code: int = 503) -> bytes:
    """The older flat shape, which no SDK recognises as an error."""
    return data_event(json.dumps({"object": "error", "message": message, "code": code}).encode())


@dataclass(frozen=True, slots=True)
class ChatStream:
    """Events of one streamed chat completion."""

    model: str = "sim"
    id: str = "chatcmpl-9e35"
    created: int = CREATED
    fingerprint: str = FINGERPRINT

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}

    def _chunk(self, choices: list[dict[str, Any]], **tail: Any) -> bytes:
        return data_event(compact({**self._head(), "choices": choices, **tail}))

    def _delta(self, delta: dict[str, Any], index: int, usage: Mapping[str, Any] | None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}
        return self._chunk([choice], **({"usage": usage} if usage else {}))

    def role(self, index: int = 0, usage: Mapping[str, Any] | None = None) -> bytes:
        """The first event of a choice: it names the role and carries no token."""
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        extra = {"usage": usage} if usage else {}
        return self._chunk([choice], **extra, prompt_token_ids=None, prompt_text=None)

    def content(self, text: str, index: int = 0, usage: Mapping[str, Any] | None = None) -> bytes:
        """One piece of visible text."""
        return self._delta({"content": text}, index, usage)

    def content_around(self, index: int = 0) -> tuple[bytes, bytes]:
        """What stands before and after the JSON string of a content event: for servers that send many."""
        before, after = self.content("\0", index).split(compact("\0"))
        return before, after

    def reasoning(self, text: str, index: int = 0, usage: Mapping[str, Any] | None = None) -> bytes:
        """One piece of reasoning text (field `reasoning` since 0.12)."""
        return self._delta({"reasoning": text}, index, usage)

    def tool_call(
        self,
        arguments: str,
        call: int = 0,
        name: str | None = None,
        index: int = 0,
        usage: Mapping[str, Any] | None = None,
    ) -> bytes:
        """A piece of a tool call's arguments; `name` makes it the opening piece, with id and type."""
        function: dict[str, Any] = {"arguments": arguments}
        entry: dict[str, Any] = {"index": call, "function": function}
        if name is not None:
            entry = {"id": f"call_{call}", "type": "function", "index": call, "function": {"name": name, **function}}
        return self._delta({"content": None, "tool_calls": [entry]}, index, usage)

    def finish(
        self, reason: str = "stop", text: str = "", index: int = 0, usage: Mapping[str, Any] | None = None
    ) -> bytes:
        """The last event of a choice; vLLM puts the last token and the reason into one chunk."""
        choice = {
            "index": index,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": None,
        }
        extra = {"usage": usage} if usage else {}
        return self._chunk([choice], **extra, system_fingerprint=self.fingerprint)

    def usage(self, prompt: int = 22, completion: int = 3, cached: int | None = None) -> bytes:
        """The usage event, sent when the client asked with stream_options.include_usage."""
        return self._chunk([], usage=usage_info(prompt, completion, cached), system_fingerprint=self.fingerprint)

    def events(
        self, tokens: Sequence[str] = ("Par", "is", "."), *, finish: str = "stop", prompt: int = 22, usage: bool = True
    ) -> list[bytes]:
        """
        A whole answer: role, one event per token, finish, usage, DONE.

        The finish event is separate and empty, so an answer of k tokens has k + 4 events with usage.
        """
        tail = [self.usage(prompt, len(tokens))] if usage else []
        return [self.role(), *map(self.content, tokens), self.finish(finish), *tail, DONE]


@dataclass(frozen=True, slots=True)
class CompletionStream:
    """Events of one streamed text completion: no role event, `text` instead of `delta`."""

    model: str = "sim"
    id: str = "cmpl-9e35"
    created: int = CREATED

    def _chunk(self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None) -> bytes:
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return data_event(compact({**head, "choices": choices, "usage": usage}))

    def text(
        self, text: str, index: int = 0, finish: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> bytes:
        """One piece of text; with `finish` it is the last one of its choice."""
        choice = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        return self._chunk([choice], usage)

    def usage(self, prompt: int = 5, completion: int = 3, cached: int | None = None) -> bytes:
        """The usage event."""
        return self._chunk([], usage_info(prompt, completion, cached))

    def events(
        self, tokens: Sequence[str] = (" Par", "is", "."), *, finish: str = "stop", prompt: int = 5, usage: bool = True
    ) -> list[bytes]:
        """A whole answer: one event per token (the last with the finish reason), usage, DONE."""
        body = [self.text(t, finish=finish if i == len(tokens) - 1 else None) for i, t in enumerate(tokens)]
        return [*body, *([self.usage(prompt, len(tokens))] if usage else []), DONE]


def chat_body(
    text: str,
    *,
    model: str = "sim",
    id: str = "chatcmpl-9e35",
    finish: str = "stop",
    prompt: int = 22,
    completion: int = 3,
    cached: int | None = None,
    created: int = CREATED,
    choices: int = 1,
) -> dict[str, Any]:
    """A chat completion that was not streamed."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "reasoning": None,
    }
    listed = [
        {
            "index": i,
            "message": message,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None,
        }
        for i in range(choices)
    ]
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": listed,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage_info(prompt, completion, cached),
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": None,
    }


def completion_body(
    texts: Sequence[str],
    *,
    model: str = "sim",
    id: str = "cmpl-9e35",
    finish: str = "stop",
    prompt: int = 5,
    completion: int = 3,
    cached: int | None = None,
    created: int = CREATED,
) -> dict[str, Any]:
    """A text completion that was not streamed, one choice per text."""
    listed = [
        {
            "index": i,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
        }
        for i, text in enumerate(texts)
    ]
    return {
        "id": id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": listed,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage_info(prompt, completion, cached),
        "kv_transfer_params": None,
    }


def models_body(names: Sequence[str], root: str, max_model_len: int, created: int = CREATED) -> dict[str, Any]:
    """The model list: one entry per served name. vLLM sets `created` to the time of the call."""
    permission = {
        "id": "modelperm-8d2a",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    data = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": root,
            "parent": None,
            "max_model_len": max_model_len,
            "permission": [permission],
        }
        for name in names
    ]
    return {"object": "list", "data": data}


def embeddings_body(
    vectors: Sequence[Sequence[float] | str], *, model: str = "sim", prompt: int = 4, created: int = CREATED
) -> dict[str, Any]:
    """An embeddings answer; a vector given as a string is base64 of little-endian float32."""
    return {
        "id": "embd-9e35",
        "object": "list",
        "created": created,
        "model": model,
        "data": [{"index": i, "object": "embedding", "embedding": v} for i, v in enumerate(vectors)],
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }
