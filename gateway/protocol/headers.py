"""Header hygiene in both directions, on raw header lists with lower-case names (as ASGI and httptools give them)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

Headers = list[tuple[bytes, bytes]]

# An allow-list: what a worker needs and what is about the request itself. Everything else is about the client's own
# connection (hop-by-hop headers, Host, encodings, cookies), about who it is (credentials, organisation), or unknown.
_TO_WORKER: Final = frozenset(
    {
        b"accept",
        b"anthropic-beta",
        b"anthropic-version",
        b"baggage",
        b"content-type",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-session-id",
    }
)
# With these a client chooses its place in the worker's queue.
_OPERATOR: Final = frozenset({b"x-vllm-priority", b"x-data-parallel-rank"})

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Not the worker's to say to a client: framing and ids are set anew; CORS, cookies and transport are the gateway's.
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | {
    b"alt-svc",
    b"content-length",
    b"date",
    b"location",
    b"request-id",
    b"server",
    b"set-cookie",
    b"strict-transport-security",
    b"via",
    b"www-authenticate",
    b"x-powered-by",
    b"x-request-id",
}
_NOT_ON_STREAMS: Final = frozenset({b"cache-control", b"content-type", b"etag", b"last-modified", b"x-accel-buffering"})
_NOT_TO_CLIENT_PREFIXES: Final = (b"access-control-", b"endpoint-load-metrics")

_NONE_NAMED: Final[frozenset[bytes]] = frozenset()

_SAFE_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
# Line ends would split the header, other control characters upset parsers.
_UNSAFE_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def client_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """
    The client's own X-Request-Id (letters, digits, `.`, `_`, `-`; at most 128), else None: generate one.

    Repeating anything else would put a client's choice of bytes into logs, headers and the worker's answers. Two
    headers that differ are no id.
    """
    values = {value for name, value in headers if name == b"x-request-id"}
    if len(values) != 1:
        return None
    value = values.pop()
    return value.decode("ascii") if _SAFE_ID.fullmatch(value) is not None else None


def forwarded_headers(
    headers: Iterable[tuple[bytes, bytes]], *, host: str, api_key: str | None = None, operator_headers: bool = False
) -> Headers:
    """
    Headers for the worker, but for the attempt's id (vLLM adopts it as the request's) and the body's length: what is
    the same for every request with the same headers.

    Args:
        headers: The client's.
        host: The worker's authority.
        api_key: The worker's own key.
        operator_headers: Forward the client's choice of priority and data-parallel rank.
    """
    headers = list(headers)
    named = _named_by_connection(headers)
    allowed = _TO_WORKER | _OPERATOR if operator_headers else _TO_WORKER
    sent: Headers = [(b"host", host.encode("latin-1"))]
    for name, value in headers:
        if name in allowed and name not in named and _UNSAFE_VALUE.search(value) is None:
            sent.append((name, value))
    sent.append((b"accept-encoding", b"identity"))
    if api_key is not None:
        sent.append((b"authorization", b"Bearer " + api_key.encode("latin-1")))
    return sent


def response_headers(
    headers: Iterable[tuple[bytes, bytes]], *, request_id: str, stream: bool, content_length: int | None = None
) -> Headers:
    """
    Headers for the client: at most one framing header, set here; the server adds chunking when there is none.

    Args:
        headers: The worker's.
        request_id: The exchange's id.
        stream: The answer is a stream of events: never buffered, cached or of declared length.
        content_length: Length of the body as it will be sent, when it is known.
    """
    sent = passed_headers(headers, stream=stream)
    if stream:
        sent += STREAM_HEADERS
    elif content_length is not None:
        sent.append((b"content-length", b"%d" % content_length))
    return sent + request_id_headers(request_id)


def passed_headers(headers: Iterable[tuple[bytes, bytes]], *, stream: bool) -> Headers:
    """The worker's headers that reach the client."""
    headers = list(headers)
    named = _NONE_NAMED
    for name, _ in headers:
        if name == b"connection":
            named = _named_by_connection(headers)
            break
    sent: Headers = []
    for name, value in headers:
        if name in _NOT_TO_CLIENT or name in named or name.startswith(_NOT_TO_CLIENT_PREFIXES):
            continue
        if (stream and name in _NOT_ON_STREAMS) or _UNSAFE_VALUE.search(value) is not None:
            continue
        sent.append((name, value))
    return sent


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """As they are written in a message."""
    pieces: list[bytes] = []
    for name, value in headers:
        # Half of what formatting takes.
        pieces += (name, b": ", value, b"\r\n")
    return b"".join(pieces)


STREAM_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def request_id_headers(request_id: str) -> Headers:
    """OpenAI's and Anthropic's name of the id; SDKs of either kind show it to their users."""
    value = request_id.encode("ascii")
    return [(b"x-request-id", value), (b"request-id", value)]


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Headers that a Connection header declares to be about the connection."""
    return frozenset(
        token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")
    )
