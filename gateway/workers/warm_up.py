"""The requests that a worker answers before clients' do: the first of each kind compiles kernels and takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.workers.spec import WorkerSpec

_CHAT = "/v1/chat/completions"
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Feature:
    """One way of using a model: its name for people, and the smallest request that uses it."""

    name: str
    path: str
    body: Mapping[str, object]


def features(spec: WorkerSpec) -> tuple[Feature, ...]:
    """
    What a worker of this specification is tried with, after a plain request of one token.

    A feature that the model does not have (no chat template, no completions) answers with a 4xx, which is fine.
    """
    chat: dict[str, object] = {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "temperature": 0}
    form = {"type": "json_schema", "json_schema": {"name": "warm_up", "schema": _SCHEMA}}
    return (
        Feature("chat", _CHAT, {"model": spec.model, **chat}),
        Feature("logprobs", _CHAT, {"model": spec.model, **chat, "logprobs": True, "top_logprobs": 1}),
        Feature("structured output", _CHAT, {"model": spec.model, **chat, "response_format": form}),
        *(
            Feature(f"adapter {name}", "/v1/completions", {"model": name, "prompt": "1", "max_tokens": 1})
            for name in spec.launch.lora_modules
        ),
    )
