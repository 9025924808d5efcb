"""Bodies of `/v1/models` and `/v1/models/{id}`, from what the gateway knows; no worker is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from gateway.types import ModelView


def list_models(models: Iterable[ModelView]) -> bytes:
    """The list body: every model followed by its aliases, in configuration order."""
    return msgspec.json.encode({"object": "list", "data": [entry for model in models for entry in _entries(model)]})


def retrieve_model(models: Iterable[ModelView], model_id: str) -> bytes | None:
    """One entry by name or alias; None when there is none."""
    for model in models:
        for entry in _entries(model):
            if entry["id"] == model_id:
                return msgspec.json.encode(entry)
    return None


def _entries(model: ModelView) -> Iterator[dict[str, object]]:
    for name in (model.name, *model.aliases):
        yield {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "vllm",
            "root": model.name,
            "parent": None if name == model.name else model.name,
            "max_model_len": model.max_model_len,
        }
