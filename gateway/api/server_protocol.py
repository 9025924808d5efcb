"""
uvicorn's HTTP protocol, with what the relay and a public listener need beside it.

* Every request's scope carries `extensions["gateway.transport"]`: the client's transport, for writing chunks of a
  started response without a task switch, and callbacks for departure and back-pressure.
* A client that leaves is noticed at once in every state: uvicorn itself tells only the newest of several pipelined
  requests, and waits for unsent bytes after a half-close.
* Limits on what a client may send before a request is complete (bytes and time), and on what it may go on sending
  after it was answered.
* Bytes that are not HTTP get the error envelope, not plain text.

What it relies on in uvicorn is pinned by tests/api/test_server_protocol.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.protocol.headers import request_id_headers

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

EXTENSION = "gateway.transport"

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers of one request."""
MAX_DISCARDED_BYTES = 256 * 1024 * 1024
"""A client that was answered before its body was read may go on sending so much: it reads the answer after that."""
HEAD_TIMEOUT_S = 60.0
"""From the first byte of a request (or the connection) to the end of its headers."""
LINGER_S = 2.0
"""After refusing what is not HTTP, for the client to read why."""
MAX_PIPELINED = 16
"""Requests waiting on one connection while reading goes on, so that a departure is seen."""


class Refusal(Exception):
    """Bytes that cannot become a request: the answer they get."""

    def __init__(self, status: int, message: str, code: str) -> None:
        self.status = status
        self.message = message
        self.code = code
        super().__init__(message)


_BAD_HTTP = Refusal(400, "This is not a valid HTTP/1.1 request.", "bad_http")
_HEAD_TOO_LARGE = Refusal(431, "The request's headers are larger than this server accepts.", "headers_too_large")
_UNKNOWN_CODING = Refusal(501, "The only transfer coding this server knows is chunked.", "unknown_transfer_coding")
_UNKNOWN_EXPECTATION = Refusal(417, "The only expectation this server can meet is 100-continue.", "unknown_expectation")


class ClientTransport:
    """
    One request's way around uvicorn's `send` (implements `proxy.direct.DirectTransport`).

    The response must have been started with `send`, and must be ended with it: only the chunks between may be written
    here. uvicorn keeps no state about those, so its own view stays true.
    """

    __slots__ = ("_corked", "_is_closing", "_on_gone", "_on_writable", "_protocol", "_write", "cycle")

    def __init__(self, protocol: GatewayProtocol) -> None:
        self._protocol = protocol
        self._write: Callable[[bytes], None] = protocol.transport.write
        self._is_closing: Callable[[], bool] = protocol.transport.is_closing
        self._on_gone: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._corked: _Cork | None = None
        self.cycle: RequestResponseCycle | None = None

    @property
    def gone(self) -> bool:
        """True once the client has left or its connection is being closed."""
        cycle = self.cycle
        return cycle is None or cycle.disconnected or self._protocol.transport.is_closing()

    @property
    def open_for_chunks(self) -> bool:
        """True iff a chunked response has been started and not ended."""
        cycle = self.cycle
        return (
            cycle is not None
            and cycle.response_started
            and not cycle.response_complete
            and cycle.chunked_encoding is True
            and cycle.scope["method"] != "HEAD"
        )

    @property
    def body_arrived(self) -> bool:
        """True iff the whole request body has been received: reading it will not wait."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body

    def cork(self) -> None:
        """Collect what the next `send`s write: each write of uvicorn's is a system call of its own."""
        if self.cycle is not None and self._corked is None:
            self._corked = _Cork(self._protocol.transport)
            self.cycle.transport = cast(asyncio.Transport, self._corked)

    def uncork(self) -> None:
        """Write what was collected."""
        corked, self._corked = self._corked, None
        if corked is not None:
            if self.cycle is not None:
                self.cycle.transport = self._protocol.transport
            corked.flush()

    def watch(self, on_gone: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Call `on_gone` once when the client leaves, `on_writable` whenever its send buffer has drained."""
        self._on_gone = on_gone
        self._on_writable = on_writable
        # A large body, or a second request behind this one, may have stopped the reading that detects a departure.
        self._protocol.flow.resume_reading()

    def unwatch(self) -> None:
        """No more calls."""
        self._on_gone = None
        self._on_writable = None

    def write(self, data: bytes) -> bool:
        """Send `data` (not empty) as one chunk. False when the client's buffer is full: pause until `on_writable`."""
        return self.write_framed(b"%x\r\n%b\r\n" % (len(data), data))

    def write_framed(self, data: bytes) -> bool:
        """As `write`, for `data` that consists of whole chunks already."""
        if self._is_closing():
            # The exchange has been told and ends soon; this read of its worker came in the same turn of the loop, and
            # a transport that is closed raises.
            return True
        self._write(data)
        return not self._protocol.flow.write_paused

    def abort(self) -> None:
        """Break the connection: what was sent must not look like a complete answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self._protocol.transport.abort()

    def notify_gone(self) -> None:
        """The connection is lost or half-closed."""
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            callback()

    def notify_writable(self) -> None:
        """The send buffer has drained."""
        if self._on_writable is not None:
            self._on_writable()


class _Cork:
    """Stands in for a transport while a response's first pieces are written. Nothing may be awaited meanwhile."""

    __slots__ = ("_pieces", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Collect `data`."""
        self._pieces.append(data)

    def flush(self) -> None:
        """Write everything that was collected."""
        if self._pieces:
            self._transport.write(b"".join(self._pieces))
            self._pieces = []

    def close(self) -> None:
        """Close the transport behind what was collected."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """See `asyncio.Transport`."""
        return self._transport.is_closing()


class GatewayProtocol(HttpToolsProtocol):
    """The `http` class of our uvicorn configuration."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._running: ClientTransport | None = None
        self._in_head = True
        self._head_bytes = 0
        self._field_bytes = 0
        self._discarded_bytes = 0
        self._closing = False
        self._replaying = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._arriving = False
        self._quiet_since_s = self.loop.time()

    @property
    def idle_since_s(self) -> float | None:
        """Since when (the loop's time) nothing has been asked on this connection, None while something is."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return None if answering or self._arriving else self._quiet_since_s

    # --- limits ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._closing:
            self._discard(len(data))
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._ignore_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            # What a callback of ours raised arrives as the context of the parser's own error.
            refusal = error.__context__
            self._refuse(refusal if isinstance(refusal, Refusal) else _BAD_HTTP)
            return
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_HEAD_TOO_LARGE)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """
        Serve a request that offers another protocol as what it is.

        The parser takes the offer for accepted and stops. A fresh one, told only of the body's framing, goes on with
        the bytes behind the headers.
        """
        self.parser = httptools.HttpRequestParser(self)
        self._replaying = True
        try:
            framing = [
                name + b": " + value + b"\r\n"
                for name, value in self.headers
                if name in (b"content-length", b"transfer-encoding")
            ]
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
        finally:
            self._replaying = False
        if not self._in_head:
            self.parser.feed_data(rest)
        elif rest:
            self.data_received(rest)

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > MAX_DISCARDED_BYTES:
            self.transport.abort()

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self._in_head and (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self._count_head(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._replaying:
            return
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        """A head that arrives in one piece is counted here, one that never ends in `data_received`."""
        self._field_bytes += size
        if self._field_bytes > MAX_HEAD_BYTES:
            raise _HEAD_TOO_LARGE

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._replaying:
            return
        self._check_head()
        self._head_bytes = 0
        self._cancel_head_timer()
        super().on_headers_complete()
        if self.pipeline and len(self.pipeline) <= MAX_PIPELINED:
            # uvicorn stops reading here, and would then not see the client leave.
            self.flow.resume_reading()

    def _check_head(self) -> None:
        """Raise Refusal for what the parser lets through and nobody further down would understand rightly."""
        if self.parser.get_http_version() not in ("1.1", "1.0"):
            raise _BAD_HTTP
        for name, value in self.headers:
            if name == b"transfer-encoding":
                if value.strip().lower() != b"chunked":
                    raise _UNKNOWN_CODING
            elif name == b"expect" and value.strip().lower() != b"100-continue":
                raise _UNKNOWN_EXPECTATION

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # its body, if any, is still to come: see `_ignore_upgrade`
        self._in_head = True
        self._arriving = False
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._discard(len(body))
        else:
            super().on_body(body)

    def _refuse(self, refusal: Refusal) -> None:
        """
        Answer what cannot become a request, and close.

        Where the broken bytes belong to a request that is being served, its exchange ends as if the client had left.
        If something of an answer is out already, or other answers are due first, the connection is just broken.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            answered = cycle.response_started or not cycle.more_body or bool(self.pipeline)
            self._gone()
            if answered:
                self.transport.abort()
                return
        body = b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":"%b"}}' % (
            refusal.message.encode("ascii"),
            refusal.code.encode("ascii"),
        )
        head = b"".join(b"%b: %b\r\n" % field for field in request_id_headers(uuid4().hex))
        head += b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[refusal.status] + head + body)
        # Closing now would answer what the client is still sending with a reset, and the answer would be lost.
        self._closing = True
        self.transport.write_eof()
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    # --- departure and back-pressure ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self._field_bytes = 0
        self._arriving = True
        super().on_message_begin()
        extensions: dict[str, Any] = {EXTENSION: ClientTransport(self)}
        self.scope["extensions"] = extensions

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        link: Any = cycle.scope["extensions"][EXTENSION]
        link.cycle = cycle
        self._running = link
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        running = self._running
        self._quiet_since_s = self.loop.time()
        super().on_response_complete()
        if running is not None and running.cycle is not None and running.cycle.response_complete:
            # Cycle, scope and transport refer to each other: untie them, so that no collector has to.
            running.uncork()
            running.cycle.scope["extensions"] = {}
            running.cycle = None
            if self._running is running:
                self._running = None

    def eof_received(self) -> None:
        # Half-closing means leaving, as for every HTTP server; what is unsent to a client that left must not keep the
        # connection open either.
        running = self._running
        if running is not None and running.cycle is not None and not running.cycle.response_complete:
            self._gone()
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        # A timer left behind keeps the connection's objects; uvicorn forgets its own when the client resets.
        self._cancel_head_timer()
        self._unset_keepalive_if_required()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)
        self._gone()

    def _gone(self) -> None:
        link = self._running
        if link is not None and link.cycle is not None and not link.cycle.response_complete:
            link.cycle.disconnected = True
            link.cycle.message_event.set()
            link.notify_gone()
        for cycle, _app in self.pipeline:
            cycle.disconnected = True
            cycle.message_event.set()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._running is not None:
            self._running.notify_writable()
