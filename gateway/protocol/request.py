"""The view of a request that the gateway needs, read from its bytes without parsing what it does not need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.types import Endpoint, Family


@dataclass(frozen=True, slots=True)
class RequestView:
    """
    What routing and relaying need of one request body; `body` are the client's bytes, unchanged.

    `include_usage` is None when the client did not set `stream_options.include_usage`. `prefix` is the beginning of
    the prompt as canonical bytes (role and text of the messages in order, or the prompt, or token ids), for
    prefix-aware routing; it is never logged.

    `members` are the top-level members as undecoded bytes, so that a rewrite need not read the body again; None for
    multipart bodies. `content_type` is the client's, needed to rewrite a multipart body.
    """

    endpoint: Endpoint
    family: Family
    body: bytes
    model: str | None
    stream: bool
    include_usage: bool | None
    n: int
    max_tokens: int | None
    prefix: bytes
    members: Mapping[str, msgspec.Raw] | None = field(default=None, repr=False, compare=False)
    content_type: str = field(default="application/json", repr=False, compare=False)


def family_of(endpoint: Endpoint) -> Family:
    """The API family of an endpoint."""
    raise NotImplementedError


def parse_request(body: bytes, endpoint: Endpoint, content_type: str, *, max_depth: int) -> RequestView:
    """Read the view of `body`. Raises RequestError (400, 415) that never echoes the body."""
    raise NotImplementedError
