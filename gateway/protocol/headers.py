"""Header hygiene in both directions, on raw header lists."""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]


def client_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The client's own X-Request-Id if it is safe to repeat, else None (generate one)."""
    raise NotImplementedError


def upstream_request_headers(
    headers: Iterable[tuple[bytes, bytes]],
    *,
    host: str,
    attempt_id: str,
    content_length: int | None,
    api_key: str | None = None,
    operator_headers: bool = False,
) -> Headers:
    """Headers for the worker; the body is always sent with content-length (None: no body)."""
    raise NotImplementedError


def response_headers(
    headers: Iterable[tuple[bytes, bytes]], *, request_id: str, stream: bool, content_length: int | None = None
) -> Headers:
    """Headers for the client. `content_length` is set only when the whole body's length is known."""
    raise NotImplementedError


def request_id_headers(request_id: str) -> Headers:
    """x-request-id and request-id."""
    raise NotImplementedError
