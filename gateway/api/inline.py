"""Which requests are served without a task (`proxy.inline`), and how a head is recognised that came before."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from gateway.api.authentication import Authenticator
from gateway.errors import RequestError
from gateway.protocol.paths import InferenceRoute
from gateway.proxy.body_budget import UNCOUNTED_BYTES
from gateway.proxy.client import Headers
from gateway.proxy.direct import DirectTransport
from gateway.proxy.relay import Relay

MAX_BODY_BYTES: Final = UNCOUNTED_BYTES
"""Of a request that is served without a task: what arrives in one read of the socket, and is parsed in no time."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_MAX_DIGITS: Final = 7
# With these a request is not the usual one: how it is to be read, or answered, depends on their values.
_UNUSUAL: Final = frozenset(
    {b"connection", b"content-encoding", b"expect", b"origin", b"te", b"transfer-encoding", b"trailer", b"upgrade"}
)


class RequestHead:
    """
    Request line and headers of a request that may be served without a task; `length` is its body's.

    Clients repeat their heads on a connection, only the length differs. `body_of` recognises such a repetition, which
    then needs no parsing: everything but the length is byte for byte what the parser has accepted.
    """

    __slots__ = ("_after", "_before", "headers", "heads", "length", "route", "url")

    def __init__(self, route: InferenceRoute, url: bytes, headers: Headers, length: int) -> None:
        self.route = route
        self.url = url
        self.headers = headers
        self.length = length
        self.heads: dict[tuple[str, str], bytes] = {}
        self._before = b""
        self._after = b""

    def with_length(self, length: int) -> RequestHead:
        """This head with the length of another body; `headers` and all."""
        if length == self.length:
            return self
        headers = [(name, b"%d" % length if name == b"content-length" else value) for name, value in self.headers]
        return RequestHead(self.route, self.url, headers, length)

    def remember(self, data: bytes) -> bool:
        """`data` is this whole request and nothing else, as far as the parser knows. False if it is not that plain."""
        end = data.find(b"\r\n\r\n") + 4
        found = _LENGTH.search(data, 0, end - 2)
        if end + self.length != len(data) or found is None or int(found[1]) != self.length:
            return False
        self._before = data[: found.start(1)]
        self._after = data[found.end(1) : end]
        return True

    def body_of(self, data: bytes) -> bytes | None:
        """The body, iff `data` is a whole request with this head and nothing else."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        begin = len(before)
        end = data.find(b"\r", begin, begin + _MAX_DIGITS + 1)
        if end < 0 or not data.startswith(after, end):
            return None
        digits = data[begin:end]
        body = data[end + len(after) :]
        return body if len(body) <= MAX_BODY_BYTES and digits.isdigit() and int(digits) == len(body) else None


class InlineServing(Protocol):
    """What the server asks about a request before it makes an ASGI request of it."""

    def head(self, url: bytes, headers: Headers) -> RequestHead | None:
        """The head of a POST (HTTP/1.1, kept alive) that may be served without a task; None for any other."""
        ...

    def serve(self, head: RequestHead, body: bytes, transport: DirectTransport) -> bool:
        """Begin to serve; False: nothing was done, make an ASGI request of it."""
        ...


class InlineRoutes:
    """Implements `InlineServing` for the inference routes in their canonical spelling."""

    def __init__(self, relay: Relay, authenticator: Authenticator, routes: Iterable[InferenceRoute]) -> None:
        self._relay = relay
        self._authenticator = authenticator
        self._routes = {route.path.encode(): route for route in routes if "POST" in route.methods}

    def head(self, url: bytes, headers: Headers) -> RequestHead | None:
        """See `InlineServing`."""
        route = self._routes.get(url)
        if route is None:
            return None
        length = -1
        for name, value in headers:
            if name == b"content-length":
                if length >= 0 or not value.isdigit() or len(value) > _MAX_DIGITS:
                    return None
                length = int(value)
            elif name in _UNUSUAL and not (name == b"connection" and value.lower() == b"keep-alive"):
                return None
        return RequestHead(route, url, headers, length) if 0 <= length <= MAX_BODY_BYTES else None

    def serve(self, head: RequestHead, body: bytes, transport: DirectTransport) -> bool:
        """See `InlineServing`."""
        try:
            caller = self._authenticator.authenticate(head.headers)
        except RequestError:
            return False
        return self._relay.serve_inline(head.route, head.headers, body, transport, caller, head.heads)
