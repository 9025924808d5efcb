"""The model list: the same entries listed and retrieved, with slashes and aliases."""

from __future__ import annotations

import json

import pytest

from gateway.protocol.models import list_models, retrieve_model
from gateway.types import ModelView

MODELS = (ModelView("org/name-7b", ("small", "a b@1:2+é"), 1700000000, 4096), ModelView("other", (), 1700000001))


def test_c65_models_and_aliases_are_listed_in_order() -> None:
    """OpenAI's four fields, vLLM's root, parent and max_model_len; an alias names its model."""
    listed = json.loads(list_models(MODELS))

    assert "list" == listed["object"]
    assert ["org/name-7b", "small", "a b@1:2+é", "other"] == [entry["id"] for entry in listed["data"]]
    assert {
        "id": "small",
        "object": "model",
        "created": 1700000000,
        "owned_by": "vllm",
        "root": "org/name-7b",
        "parent": "org/name-7b",
        "max_model_len": 4096,
    } == listed["data"][1]
    assert listed["data"][0]["parent"] is None


@pytest.mark.parametrize("model_id", ["org/name-7b", "small", "a b@1:2+é", "other"])
def test_c64_every_listed_model_can_be_retrieved(model_id: str) -> None:
    """With the very entry of the list."""
    body = retrieve_model(MODELS, model_id)

    assert body is not None
    assert json.loads(body) in json.loads(list_models(MODELS))["data"]
    assert model_id == json.loads(body)["id"]


def test_c64_an_unknown_model_is_none() -> None:
    """The caller answers 404 model_not_found."""
    assert retrieve_model(MODELS, "org") is None
    assert {"object": "list", "data": []} == json.loads(list_models(()))
