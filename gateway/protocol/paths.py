"""From a raw request path to what is asked for: the allow-list of public routes and their accepted spellings."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.types import Endpoint


@dataclass(frozen=True, slots=True)
class InferenceRoute:
    """
    A route relayed to a worker. `path` is the canonical path to send upstream; `methods` those it accepts (OPTIONS and,
    beside GET, HEAD are the caller's matter). `item` is the percent-decoded id of a stored object, "" without.
    """

    endpoint: Endpoint
    path: str
    methods: frozenset[str]
    item: str = ""


@dataclass(frozen=True, slots=True)
class ModelList:
    """GET /v1/models."""


@dataclass(frozen=True, slots=True)
class ModelRetrieve:
    """GET /v1/models/{id}; the id is percent-decoded once."""

    model_id: str


Route = InferenceRoute | ModelList | ModelRetrieve


def resolve(raw_path: bytes) -> Route | None:
    """What the path means; None: not a public route (404). The query string must be cut off before."""
    raise NotImplementedError
