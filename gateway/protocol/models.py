"""Bodies of `/v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.types import ModelView


def list_models(models: Iterable[ModelView]) -> bytes:
    """The list body: every model, then its aliases, in configuration order."""
    raise NotImplementedError


def retrieve_model(models: Iterable[ModelView], model_id: str) -> bytes | None:
    """One entry by name or alias; None when there is none."""
    raise NotImplementedError
