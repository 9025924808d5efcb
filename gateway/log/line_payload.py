"""The shape of an exchange's canonical line (docs/logs.md says what each field means)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType


class RequestLine(Struct, gc=False):
    """In the order in which they are written; a field that is UNSET is left out, None is written as null."""

    request_id: str
    endpoint: str
    model: str
    outcome: str
    status: int | None
    stream: bool
    bytes_in: int
    bytes_out: int
    tenant: str | UnsetType
    worker: str | UnsetType
    upstream_request_id: str | UnsetType
    attempts: int | UnsetType
    policy: str | UnsetType
    decision: str | UnsetType
    events: int | UnsetType
    error_code: str | UnsetType
    rejection: str | UnsetType
    detail: str | UnsetType
    retries: Sequence[str] | UnsetType
    finish_reasons: Sequence[str] | UnsetType
    output_tokens_estimated: bool | UnsetType
    prompt_tokens: int | UnsetType
    cached_tokens: int | UnsetType
    output_tokens: int | UnsetType
    disconnect: str | UnsetType
    duration_ms: float | UnsetType
    body_ms: float | UnsetType
    first_byte_ms: float | UnsetType
    ttft_ms: float | UnsetType
    tpot_ms: float | UnsetType
    token_events: int | UnsetType
    tokens_ms: float | UnsetType
    parse_ms: float | UnsetType
    admission_ms: float | UnsetType
    routing_ms: float | UnsetType
    connect_ms: float | UnsetType
    relay_ms: float | UnsetType
    body: str | UnsetType


def line_fields(line: RequestLine) -> dict[str, object]:
    """The fields that are written, by their names."""
    return {name: value for name in line.__struct_fields__ if (value := getattr(line, name)) is not UNSET}
