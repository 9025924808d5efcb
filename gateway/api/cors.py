"""CORS for browser clients, as pure ASGI middleware: preflights are answered before anything else looks at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.proxy.direct import Receive, Scope, Send

MAX_AGE_S = 600
EXPOSED = (
    b"x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, openai-processing-ms, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_METHODS = b"GET, POST, DELETE, HEAD, OPTIONS"
_MAX_REQUESTED = 4096


class Cors:
    """
    Adds the CORS headers for allowed origins and answers their preflights. Without origins it does nothing.

    Credentials (cookies) are never allowed: API keys travel in headers of the client's own making.
    """

    def __init__(self, app: Any, allow_origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode("latin-1") for origin in allow_origins)
        self._any = b"*" in self._origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._origins:
            await self._app(scope, receive, send)
            return
        origin = requested = None
        preflight = False
        for name, value in scope["headers"]:
            if name == b"origin":
                origin = value
            elif name == b"access-control-request-method":
                preflight = scope["method"] == "OPTIONS"
            elif name == b"access-control-request-headers":
                requested = value
        if origin is None:
            await self._app(scope, receive, send)
            return
        granted: list[tuple[bytes, bytes]] = [(b"vary", b"Origin")]
        if self._any:
            granted.append((b"access-control-allow-origin", b"*"))
        elif origin in self._origins:
            granted.append((b"access-control-allow-origin", origin))
        if preflight:
            if len(granted) > 1:
                granted += [
                    (b"access-control-allow-methods", _METHODS),
                    (b"access-control-allow-headers", _safe(requested)),
                    (b"access-control-max-age", b"%d" % MAX_AGE_S),
                ]
            await send({"type": "http.response.start", "status": 204, "headers": granted})
            await send({"type": "http.response.body", "body": b""})
            return
        if len(granted) > 1:
            granted.append((b"access-control-expose-headers", EXPOSED))

        async def with_cors(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *granted]
            await send(message)

        await self._app(scope, receive, with_cors)


def _safe(requested: bytes | None) -> bytes:
    """The requested header names if they are a plain list of names."""
    if requested is None or len(requested) > _MAX_REQUESTED:
        return b"authorization, content-type"
    allowed = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, "
    return requested if not requested.translate(None, allowed) else b"authorization, content-type"
