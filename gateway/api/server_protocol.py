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
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.api.client_transport import ClientTransport
from gateway.api.inline import InlineServing, RequestHead
from gateway.protocol.headers import request_id_headers
from gateway.proxy.direct import EXTENSION, ChunkWriter, Receive, Send

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers of one request."""
MAX_DISCARDED_BYTES = 256 * 1024 * 1024
"""A client that was answered before its body was read may go on sending so much: it reads the answer after that."""
HEAD_TIMEOUT_S = 60.0
"""From the first byte of a request (or the connection) to the end of its headers."""
LINGER_S = 2.0
"""After refusing what is not HTTP, for the client to read why."""
_CLOSE_LINE = b"connection: close\r\n"
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
        self._inline: InlineServing | None = getattr(self.app, "inline", None) if self.root_path == "" else None
        self._running: ClientTransport | None = None
        # A request that may be served without a task: its head while its body arrives, then the last one's.
        self._pending: RequestHead | None = None
        self._pending_body: list[bytes] = []
        self._pending_whole = False
        self._known_head: RequestHead | None = None
        self._last_answer = False
        self._defaults: list[tuple[bytes, bytes]] = []
        self._default_lines = b""
        self._idle_timer: asyncio.TimerHandle | None = None
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
        answering = self._claimed or (self.cycle is not None and not self.cycle.response_complete)
        return None if answering or self._arriving else self._quiet_since_s

    # --- limits ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.writer = ChunkWriter(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._closing:
            self._discard(len(data))
            return
        running = self._running
        alone = self._in_head and not self._head_bytes
        if running is not None:
            # Another request behind one that is served without a task: uvicorn knows how to queue them.
            running.give_up()
        elif self._known_head is not None and alone:
            # The parser is between two messages and need not see this one.
            body = self._known_head.body_of(data)
            if body is not None:
                self._serve(self._known_head, body)
                return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._ignore_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            self._leave_pending()
            # What a callback of ours raised arrives as the context of the parser's own error.
            refusal = error.__context__
            self._refuse(refusal if isinstance(refusal, Refusal) else _BAD_HTTP)
            return
        pending = self._pending
        if pending is not None:
            if self._pending_whole:
                body = self._take_pending()
                self._known_head = pending if alone and pending.remember(data) else None
                self._serve(pending, body)
            else:
                self._leave_pending()
        if self._in_head and self._head_bytes:
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_HEAD_TOO_LARGE)
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)

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
        if self._begin_pending():
            return
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
        if self._pending is not None:
            self._pending_whole = True
            return
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        if self._pending is not None:
            self._pending_body.append(body)
        elif self.cycle.response_complete:
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
        self._leave_pending()
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

    # --- requests without a task ----------------------------------------------------------------------------------

    @property
    def _claimed(self) -> bool:
        return self._running is not None and self._running.claimed

    def _begin_pending(self) -> bool:
        """Whether the request whose headers are complete may be served without a task, if its body is here at once."""
        parser = self.parser
        if (
            self._inline is None
            or self._running is not None
            or self.pipeline
            or (self.cycle is not None and not self.cycle.response_complete)
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
            or not parser.should_keep_alive()
            or parser.should_upgrade()
        ):
            return False
        self._pending = self._inline.head(self.url, self.headers)
        self._pending_whole = False
        return self._pending is not None

    def _take_pending(self) -> bytes:
        body = b"".join(self._pending_body)
        self._pending = None
        self._pending_body = []
        return body

    def _leave_pending(self) -> None:
        """Make an ASGI request of what was set aside: it arrives in pieces, or not alone."""
        head = self._pending
        if head is not None:
            body = self._take_pending()
            cycle = self._cycle_of(head, ClientTransport(self, head), body, more_body=not self._pending_whole)
            self._start_asgi_task(cycle, self.app)

    def _serve(self, head: RequestHead, body: bytes) -> None:
        link = ClientTransport(self, head)
        self._running = link
        assert self._inline is not None
        if not self._inline.serve(head, body, link):
            head = head.with_length(len(body))
            self._start_asgi_task(self._cycle_of(head, link, body, more_body=False), self.app)

    def _cycle_of(
        self, head: RequestHead, link: ClientTransport, body: bytes, *, more_body: bool
    ) -> RequestResponseCycle:
        """uvicorn's object of a request, as `on_headers_complete` would have made it."""
        path = head.url.decode("ascii")
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "path": path,
            "raw_path": head.url,
            "query_string": b"",
            "headers": head.headers,
            "state": self.app_state.copy(),
            "extensions": {EXTENSION: link},
        }
        cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=not self._last_answer,
            on_response=self.on_response_complete,
        )
        cycle.body += body
        cycle.more_body = more_body
        if body or not more_body:
            cycle.message_event.set()
        self.cycle = cycle
        return cycle

    def start_task(
        self,
        link: ClientTransport,
        serve: Callable[[Receive, Send], Coroutine[Any, Any, None]],
        *,
        started: bool,
    ) -> None:
        """Go on with a claimed request in a task; `started`: its chunked answer has been."""
        assert link.head is not None
        cycle = self._cycle_of(link.head, link, b"", more_body=False)
        cycle.message_event.clear()
        cycle.disconnected = self.transport.is_closing()
        if started:
            cycle.response_started = True
            cycle.chunked_encoding = True

        async def go_on(scope: Any, receive: Receive, send: Send) -> None:
            await serve(receive, send)

        self._start_asgi_task(cycle, go_on)

    def head_lines(self, status: int) -> bytes:
        """Status line and the server's own header lines."""
        defaults = self.server_state.default_headers
        if defaults is not self._defaults:
            # uvicorn makes a new list once a second, for the date.
            self._defaults = defaults
            self._default_lines = b"".join(b"%b: %b\r\n" % field for field in defaults)
        if self._default_lines.endswith(_CLOSE_LINE):
            self._last_answer = True
        elif self._last_answer:
            return STATUS_LINE[status] + self._default_lines + _CLOSE_LINE
        return STATUS_LINE[status] + self._default_lines

    def claim_ended(self) -> None:
        """A claimed request has been answered whole."""
        self._running = None
        self.server_state.total_requests += 1
        self._quiet_since_s = self.loop.time()
        if self._last_answer:
            self.transport.close()
        elif self._idle_timer is None and not self.transport.is_closing():
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_if_idle)

    def _look_if_idle(self) -> None:
        """Close the connection if nothing was asked on it for so long; one timer serves any number of requests."""
        self._idle_timer = None
        since_s = self.idle_since_s
        left_s = self.timeout_keep_alive if since_s is None else since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0.001:
            self._idle_timer = self.loop.call_later(left_s, self._look_if_idle)
        else:
            self.timeout_keep_alive_handler()

    def shutdown(self) -> None:
        if self._claimed:
            self._last_answer = True
        else:
            super().shutdown()

    def eof_received(self) -> None:
        # Half-closing means leaving, as for every HTTP server; what is unsent to a client that left must not keep the
        # connection open either.
        running = self._running
        if self._claimed or (running is not None and running.cycle is not None and not running.cycle.response_complete):
            self._gone()
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        # A timer left behind keeps the connection's objects; uvicorn forgets its own when the client resets.
        self._cancel_head_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._unset_keepalive_if_required()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)
        self._gone()

    def _gone(self) -> None:
        link = self._running
        if link is not None and link.claimed:
            # Whoever serves it goes over to a task.
            link.notify_gone()
        if link is not None and link.cycle is not None and not link.cycle.response_complete:
            link.cycle.disconnected = True
            link.cycle.message_event.set()
            link.notify_gone()
        for cycle, _app in self.pipeline:
            cycle.disconnected = True
            cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writer.full()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.writer.drained()
        if self._running is not None:
            self._running.notify_writable()
