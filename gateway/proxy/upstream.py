"""
One HTTP/1.1 connection to a worker: an `asyncio.Protocol` parsed by httptools, one request at a time.

Everything arrives through callbacks of the response's sink, at most one `on_data` for each read of the socket: between
the socket and the client there is no queue and no task switch. Framing is judged strictly; what a worker may get wrong
without being disbelieved is what llhttp accepts without any leniency, less unknown transfer codings.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

import httptools

from gateway.errors import UpstreamConnectError, UpstreamError, UpstreamIncomplete, UpstreamProtocolError
from gateway.protocol.known_event import KnownEvents
from gateway.proxy.known_head import Headers, KnownHead
from gateway.types import WorkerAddress

MAX_HEAD_BYTES: Final = 64 * 1024
"""Status line and headers of one answer; also bounds trailers."""


class ResponseSink(Protocol):
    """Who receives one response. Every method runs inside the event loop's read callback: it must not block."""

    def on_head(self, status: int, headers: Headers) -> None:
        """Status and headers (lower-case names) of the final answer; informational ones are skipped."""
        ...

    def on_data(self, data: bytes) -> None:
        """Body bytes, without transfer coding, never empty."""
        ...

    def on_complete(self) -> None:
        """The body ended as its framing promised."""
        ...

    def on_failed(self, error: UpstreamError) -> None:
        """The connection is gone before the body was complete; nothing follows."""
        ...


@dataclass(frozen=True, slots=True)
class Nobody:
    """Sink of a connection without a request."""

    def on_head(self, status: int, headers: Headers) -> None:
        """Ignore it."""

    def on_data(self, data: bytes) -> None:
        """Ignore it."""

    def on_complete(self) -> None:
        """Ignore it."""

    def on_failed(self, error: UpstreamError) -> None:
        """Ignore it."""


_NOBODY: Final = Nobody()


class Shortcut:
    """
    What may deal with a read of a chunked body before the parser does. A class and no Protocol: compiled, its method is
    found without a look-up, for every event.
    """

    __slots__ = ()

    def pass_through(self, data: bytes) -> bool:
        """
        A read that begins between two chunks, as it came from the socket.

        True for what has been dealt with, which must be whole chunks and not the last one: the parser, which never sees
        them, is then again between two chunks.
        """
        return False


class UpstreamConnection(asyncio.Protocol):
    """
    A connection that carries one request at a time.

    `on_closed` is called once, when the socket is gone; `on_free` when a response that nobody waits for any more has
    completed (see `detach`). `used` counts the requests sent, so that a stale reused connection can be told from a
    fresh one; `answered` is True as soon as one byte of the current answer has come.
    """

    __slots__ = (
        "_between_chunks",
        "_body",
        "_bodyless_framing",
        "_chunk_done",
        "_complete",
        "_failure",
        "_head_bytes",
        "_head_done",
        "_header_bytes",
        "_headers",
        "_keep_alive",
        "_on_closed",
        "_on_free",
        "_parser",
        "_reading",
        "_shortcut",
        "_sink",
        "_transport",
        "answered",
        "closed",
        "idle_since",
        "known_events",
        "known_head",
        "used",
    )

    def __init__(
        self,
        on_closed: Callable[[UpstreamConnection], None] | None = None,
        known_events: KnownEvents | None = None,
    ) -> None:
        # First, and so next to each other in memory, what every event looks at.
        self._shortcut: Shortcut | None = None
        self._between_chunks = False
        self._on_closed = on_closed
        self._on_free: Callable[[UpstreamConnection], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._sink: ResponseSink = _NOBODY
        self._body: bytes | list[bytes] | None = None
        self._headers: Headers = []
        self._failure: UpstreamError | None = None
        self._reading = True
        self._complete = True
        self._keep_alive = True
        self._head_done = False
        self._head_bytes = 0
        self._header_bytes = 0
        self._chunk_done = False
        self._bodyless_framing = False
        self.answered = False
        self.closed = False
        self.used = 0
        self.idle_since = 0.0
        self.known_head: KnownHead | None = None
        self.known_events = KnownEvents() if known_events is None else known_events
        self._parser = httptools.HttpResponseParser(self)

    # --- the owner's side -----------------------------------------------------------------------------------------

    def send(self, sink: ResponseSink, head: bytes, body: bytes) -> None:
        """Send one request; its answer goes to `sink`. The connection must be `reusable`."""
        transport = self._transport
        assert transport is not None
        self._sink = sink
        self._shortcut = None
        self._between_chunks = False
        self._complete = False
        self._keep_alive = True
        self._head_done = False
        self._head_bytes = 0
        self._header_bytes = 0
        self._headers = []
        self._body = None
        self.answered = False
        self.used += 1
        if len(body) < 16384:
            transport.write(head + body)
        else:
            # A large body is handed over as it is: joining would copy it.
            transport.write(head)
            transport.write(body)

    @property
    def reusable(self) -> bool:
        """True iff another request may be sent: the last answer is complete, both sides keep the connection."""
        transport = self._transport
        return (
            self._complete
            and self._keep_alive
            and not self.closed
            and transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        )

    @property
    def complete(self) -> bool:
        """True iff no answer is outstanding."""
        return self._complete

    @property
    def reading(self) -> bool:
        """False while `pause_reading` is in force."""
        return self._reading

    def take_shortcut(self, shortcut: Shortcut) -> None:
        """From now on, until the answer ends, offer every read that begins between two chunks to `shortcut` first."""
        if not self._complete:
            self._shortcut = shortcut

    def detach(self, on_free: Callable[[UpstreamConnection], None] | None = None) -> None:
        """Stop caring for the current answer. `on_free` is called when it completes, if it does."""
        self._sink = _NOBODY
        self._shortcut = None
        self._on_free = on_free
        self.resume_reading()

    def abort(self) -> None:
        """Close the socket at once, unsent bytes included: the worker sees it and stops generating."""
        self._sink = _NOBODY
        self._shortcut = None
        self._on_free = None
        self._keep_alive = False
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Stop reading: the worker's own socket fills up and its writes wait. Not once the answer is complete."""
        if self._reading and not self._complete and not self.closed and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if not self._reading and not self.closed and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()

    # --- the event loop's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        shortcut = self._shortcut
        if shortcut is not None and self._between_chunks and shortcut.pass_through(data):
            return
        known = self.known_head
        if known is not None and not self.answered and not self._complete:
            known_body = known.body_of(data)
            if known_body is not None:
                self._take_known(known, known_body)
                return
        first = not self.answered
        if self._complete:
            # Bytes nobody asked for: an answer to come could not be told from them.
            self._keep_alive = False
            self._close()
            return
        self.answered = True
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._keep_alive = False
            if not self._complete:
                cause = error.__context__
                self._fail(
                    cause if isinstance(cause, UpstreamError) else UpstreamProtocolError(f"not HTTP/1.1: {error}")
                )
                return
        except httptools.HttpParserUpgrade:
            self._fail(UpstreamProtocolError("the worker tried to switch protocols"))
            return
        if not self._head_done and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(UpstreamProtocolError(f"more than {MAX_HEAD_BYTES} bytes of headers"))
            return
        # The parser tells of a size line when it has read all of it: a read may end inside the next one.
        self._between_chunks = self._chunk_done and data.endswith(b"\r\n")
        body = self._body
        if body is not None:  # set by on_body, which the parser has just called
            self._body = None
            self._sink.on_data(b"".join(body) if isinstance(body, list) else body)
        if self.complete:
            if first and self._keep_alive:
                self.known_head = KnownHead.of(data, self._headers)
            self._completed()

    def _take_known(self, known: KnownHead, body: bytes) -> None:
        """A whole answer of status 200 whose head came before; the parser, which never sees it, is at a beginning."""
        self.answered = True
        self._head_done = True
        self._headers = known.headers
        self._sink.on_head(200, known.headers)
        self._sink.on_data(body)
        self._complete = True
        self._completed()

    def eof_received(self) -> bool:
        if not self._complete and self._head_done and self._bodyless_framing:
            # Neither length nor chunks were announced: the end of the connection is the end of the body.
            self._complete = True
            self._keep_alive = False
            self._completed()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._keep_alive = False
        if not self._complete:
            self._complete = True
            sink, self._sink = self._sink, _NOBODY
            if self._failure is not None:
                sink.on_failed(self._failure)
            elif exc is not None:
                sink.on_failed(UpstreamIncomplete(f"connection lost: {type(exc).__name__}"))
            else:
                sink.on_failed(UpstreamIncomplete("connection closed before the answer was complete"))
        if self._on_closed is not None:
            self._on_closed(self)

    def _close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    def _fail(self, error: UpstreamError) -> None:
        self._failure = error
        self._body = None
        sink, self._sink = self._sink, _NOBODY
        self._complete = True
        self._keep_alive = False
        self._close()
        sink.on_failed(error)

    def _completed(self) -> None:
        # Nothing of this answer may reach into the next one: neither its shortcut, which also keeps it alive, nor a
        # pause that the very read which completed it has caused.
        self._shortcut = None
        self.resume_reading()
        sink, self._sink = self._sink, _NOBODY
        on_free, self._on_free = self._on_free, None
        sink.on_complete()
        if on_free is not None:
            on_free(self)

    # --- the parser's side ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEAD_BYTES:
            raise UpstreamProtocolError(f"more than {MAX_HEAD_BYTES} bytes of headers")
        if not self._head_done:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            return
        self._head_done = True
        self._keep_alive = self._keep_alive and self._parser.should_keep_alive()
        framed = status in (204, 304)
        for name, value in self._headers:
            if name == b"transfer-encoding":
                if value.strip().lower() != b"chunked":
                    raise UpstreamProtocolError("transfer coding other than chunked")
                framed = True
            elif name == b"content-length":
                framed = True
        self._bodyless_framing = not framed
        self._sink.on_head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        held = self._body
        if held is None:
            self._body = body
        elif isinstance(held, list):
            held.append(body)
        else:
            self._body = [held, body]

    def on_chunk_header(self) -> None:
        self._chunk_done = False

    def on_chunk_complete(self) -> None:
        self._chunk_done = True

    def on_message_complete(self) -> None:
        self._chunk_done = False
        if self._head_done:
            self._complete = True


async def connect(
    address: WorkerAddress,
    context: ssl.SSLContext | None = None,
    on_closed: Callable[[UpstreamConnection], None] | None = None,
    known_events: KnownEvents | None = None,
) -> UpstreamConnection:
    """
    Open a connection.

    Args:
        known_events: What is known of the events of this worker; nothing yet by default.

    Raises:
        UpstreamConnectError: refused, unreachable, unknown name, or TLS handshake failed.
    """
    loop = asyncio.get_running_loop()
    connection = UpstreamConnection(on_closed, known_events)

    def factory() -> UpstreamConnection:
        return connection

    try:
        if address.uds is not None:
            await loop.create_unix_connection(factory, address.uds)
        else:
            await loop.create_connection(factory, address.host, address.port, ssl=context)
    except (OSError, socket.gaierror, ssl.SSLError) as error:
        raise UpstreamConnectError(f"cannot connect: {error}") from error
    except BaseException:
        connection.abort()
        raise
    return connection


def tls_context(address: WorkerAddress) -> ssl.SSLContext | None:
    """How to speak TLS with `address`; None for a plain connection. Reads the CA file, so make it once per worker."""
    if not address.tls:
        return None
    context = ssl.create_default_context(cafile=address.tls_ca_file)
    if not address.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
