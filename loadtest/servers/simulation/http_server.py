"""A small HTTP/1.1 server on httptools, as uvicorn looks from outside: one request at a time per connection."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import cast

import httptools

from loadtest.servers.http1 import LAST_CHUNK, Headers, response_head


@dataclass(frozen=True, slots=True)
class Request:
    """One complete request; header names in lower case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool


@dataclass(slots=True, eq=False)
class Exchange:
    """The answer to one request. `on_disconnect` is called at most once, if the client leaves before the end."""

    connection: HttpConnection
    request: Request
    on_disconnect: Callable[[], None] | None = None
    extra_headers: Headers = ()
    status: int = 0
    ended: bool = False

    def start(self, status: int, headers: Headers) -> None:
        """Sends the head of a chunked answer."""
        self.status = status
        base = (("date", formatdate(usegmt=True)), ("server", "uvicorn"))
        framing = (("transfer-encoding", "chunked"),)
        self.connection.write(response_head(status, (*base, *headers, *self.extra_headers, *framing)))

    def send(self, data: bytes) -> None:
        """Sends one chunk."""
        self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """Ends a chunked answer."""
        self.connection.write(LAST_CHUNK)
        self._done()

    def reply(self, status: int, body: bytes, headers: Headers = (("content-type", "application/json"),)) -> None:
        """Sends a whole answer."""
        self.status = status
        base = (("date", formatdate(usegmt=True)), ("server", "uvicorn"), ("content-length", str(len(body))))
        self.connection.write(response_head(status, (*base, *headers, *self.extra_headers)) + body)
        self._done()

    def json(self, status: int, value: object, headers: Headers = ()) -> None:
        """Sends a JSON answer."""
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        self.reply(status, body, (("content-type", "application/json"), *headers))

    def _done(self) -> None:
        self.ended, self.on_disconnect = True, None
        self.connection.exchange_ended(self)


@dataclass(slots=True, eq=False)
class HttpSite:
    """What all connections of a server share."""

    handle: Callable[[Exchange], None]
    keep_alive_s: float
    connections: set[HttpConnection] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a connection ends; whoever waits clears it."""


class HttpConnection(asyncio.Protocol):
    """One client connection; closes it after `keep_alive_s` of idleness."""

    def __init__(self, site: HttpSite) -> None:
        self._site = site
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._pending: deque[Request] = deque()
        self._current: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport = cast("asyncio.Transport", transport)
        sock = self._transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._site.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, or this end closed."""
        self._site.connections.discard(self)
        self._site.changed.set()
        self._stop_timer()
        self._pending.clear()
        if self._current is not None and self._current.on_disconnect is not None:
            on_disconnect, self._current.on_disconnect = self._current.on_disconnect, None
            on_disconnect()
        self._current = None

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._stop_timer()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # an upgrade offer is ignored, the request was delivered
        except httptools.HttpParserError:
            self.write(response_head(400, (("content-type", "text/plain; charset=utf-8"), ("connection", "close"))))
            self.write(b"Invalid HTTP request received.")
            self._transport.close()

    # -- httptools callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A new request."""
        self._url, self._headers, self._body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        """Part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is there; a client that waits for 100 gets it."""
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """The request is complete."""
        path, _, query = self._url.decode("latin-1").partition("?")
        self._pending.append(
            Request(
                self._parser.get_method().decode("latin-1"),
                path,
                query,
                self._headers,
                bytes(self._body),
                bool(self._parser.should_keep_alive()),
            )
        )
        self._next()

    # -- answering ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends bytes, or drops them when the client is gone."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def exchange_ended(self, exchange: Exchange) -> None:
        """The answer is out; goes on with the next request or waits for one."""
        self._current = None
        if not exchange.request.keep_alive:
            self._transport.close()
            return
        self._next()
        if self._current is None and not self._transport.is_closing():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._site.keep_alive_s, self._transport.close)

    def close_if_idle(self) -> None:
        """Closes a connection between two requests, as at shutdown."""
        if self._current is None:
            self._transport.close()

    def abort(self) -> None:
        """Drops the connection."""
        self._transport.abort()

    def cut(self) -> None:
        """Closes in the middle of an answer, once everything written is out; nobody is told of a disconnect."""
        self._current = None
        self._transport.close()

    def reset(self) -> None:
        """Ends the connection with RST in the middle of an answer."""
        self._current = None
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _next(self) -> None:
        if self._current is None and self._pending:
            self._stop_timer()
            exchange = self._current = Exchange(self, self._pending.popleft())
            self._site.handle(exchange)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
