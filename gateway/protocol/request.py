"""The view of a request that the gateway needs, read from its bytes without parsing what it does not need."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.types import Endpoint, Family


@dataclass(frozen=True, slots=True)
class RequestView:
    """
    What routing and relaying need of one request body; `body` are the client's bytes, unchanged.

    `include_usage` is None when the client did not set `stream_options.include_usage`. `prefix` is the beginning of
    the prompt as canonical bytes (role and text of the messages in order, or the prompt, or token ids), for
    prefix-aware routing; it is never logged.
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
