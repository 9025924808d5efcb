"""
One HTTP/1.1 connection that reads at the socket: every read is timed before it is parsed.

Plain blocking sockets, so the same code runs under gevent (Locust) and in a thread. Proxies are never used. A
connection is kept alive between requests; one that the server has closed meanwhile is replaced before anything is sent,
and a request is never sent twice.

Why not geventhttpclient: its `read(n)` waits for n bytes, and its `readline` costs 20 us of processor time per event
where this costs 13 (measured with the same decoder behind both, 100 and 200 streams at 50 events/s).
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import httptools

from loadtest.outcomes import Outcome
from loadtest.stalls import StallGuard
from loadtest.target import Target

READ_SIZE = 65_536
ERROR_BODY_LIMIT = 2_000
_END_OF_BODY_S = 1.0
"""How long a server may take to end the body once the answer itself is complete."""


class Verdict(Enum):
    """What the caller makes of a piece of the answer."""

    MORE = 0
    COMPLETE = 1
    """The answer is complete; only the end of the body is waited for."""
    LEAVE = 2
    """Close the connection now."""


OnData = Callable[[float, bytes], Verdict]
"""Gets (time of the read, piece of a 200 body)."""


class TransportFailure(Exception):
    """The exchange failed below the level of the answer."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail


@dataclass(slots=True)
class Exchange:
    """What came back. Moments are perf_counter seconds; a body that is not passed on is kept up to a limit."""

    sent_at: float = 0.0
    connect_s: float | None = None
    """What opening the connection took; None: it was open."""
    last_read_at: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    body_complete: bool = False
    sent: bool = False
    left: bool = False
    """This side closed the connection on purpose."""
    stalled: bool = False
    """Set by the stall guard, which has shut the socket down."""


class _Reader:
    """httptools callbacks of one response."""

    def __init__(self, exchange: Exchange, on_data: OnData | None) -> None:
        self.exchange, self._on_data = exchange, on_data
        self.parser = httptools.HttpResponseParser(self)  # a cycle, until `release`
        self.satisfied = False
        self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.exchange.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.exchange.status = self.parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        exchange = self.exchange
        if exchange.status == 200 and self._on_data is not None:
            verdict = self._on_data(exchange.last_read_at, piece)
            if verdict is Verdict.COMPLETE:
                self.satisfied = True
            elif verdict is Verdict.LEAVE:
                exchange.left = True
        elif self._on_data is None or len(exchange.body) < ERROR_BODY_LIMIT:
            exchange.body += piece

    def on_message_complete(self) -> None:
        self.exchange.body_complete = self.exchange.status >= 200
        # Asked here: once the message is over, the parser has forgotten and says no.
        self.keep_alive = self.parser.should_keep_alive()

    def release(self) -> None:
        """Lets everything go without the garbage collector, which rests during a run."""
        del self.parser

    @property
    def ends_with_connection(self) -> bool:
        headers = self.exchange.headers
        framed = "content-length" in headers or "transfer-encoding" in headers
        return self.exchange.status >= 200 and not framed


class Client:
    """
    One connection to one target, opened when first needed.

    A read that takes longer than `read_timeout_s` fails. With a `guard` its limit counts instead: a timer per read
    costs a quarter of the whole event.
    """

    def __init__(
        self,
        target: Target,
        *,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        guard: StallGuard | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._target = target
        self._connect_timeout_s = connect_timeout_s
        self._guard = None if target.tls else guard  # shutting a TLS socket down from outside breaks its reader
        self._limit_s = read_timeout_s if guard is None else guard.limit_s
        self._read_timeout_s = None if self._guard else self._limit_s
        self._tls = tls or (ssl.create_default_context() if target.tls else None)
        self._socket: socket.socket | None = None

    @property
    def connected(self) -> bool:
        """Whether a connection is open, as far as is known."""
        return self._socket is not None

    def close(self) -> None:
        """Closes the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def exchange(
        self,
        request: bytes,
        on_data: OnData | None = None,
        into: Exchange | None = None,
        *,
        leave_after_s: float | None = None,
    ) -> Exchange:
        """
        Sends a request and reads its answer; a 200 body goes to `on_data`, any other is kept.

        `into` is filled while it happens, so that a caller who is interrupted knows how far it got. `leave_after_s`
        after sending the connection is closed, wherever the answer is.

        Raises:
            TransportFailure: no connection, reset, timeout, bytes that are no HTTP, or a cut body.
        """
        exchange = into if into is not None else Exchange()
        sock = self._connected(exchange)
        reader = _Reader(exchange, on_data)
        keep = False
        try:
            exchange.sent_at = exchange.last_read_at = time.perf_counter()
            exchange.sent = True
            if self._guard is not None:
                self._guard.watch(exchange, sock)
            sock.sendall(request)
            self._read(sock, reader, None if leave_after_s is None else exchange.sent_at + leave_after_s)
            keep = exchange.body_complete and reader.keep_alive and not exchange.left
        except TimeoutError as error:
            raise TransportFailure(Outcome.TIMEOUT, self._stall_text()) from error
        except OSError as error:
            if exchange.stalled:
                raise TransportFailure(Outcome.TIMEOUT, self._stall_text()) from error
            raise TransportFailure(Outcome.RESET, f"connection reset: {error}") from error
        except httptools.HttpParserError as error:
            raise TransportFailure(Outcome.MALFORMED, f"not HTTP: {error}") from error
        finally:
            if self._guard is not None:
                self._guard.forget(exchange)
            if not keep:
                self.close()
            reader.release()
        return exchange

    def _read(self, sock: socket.socket, reader: _Reader, leave_at: float | None) -> None:
        exchange, feed, recv = reader.exchange, reader.parser.feed_data, sock.recv
        while not exchange.body_complete:
            if leave_at is not None and not self._wait_until(sock, exchange, leave_at):
                return
            try:
                data = recv(READ_SIZE)
            except TimeoutError:
                if reader.satisfied:
                    return  # the answer is complete, only the end of the body is missing
                if leave_at is not None and time.perf_counter() >= leave_at:
                    exchange.left = True
                    return
                raise
            exchange.last_read_at = time.perf_counter()
            if not data:
                self._ended(reader)
                return
            feed(data)
            if exchange.left:
                return
            if reader.satisfied:
                sock.settimeout(_END_OF_BODY_S)

    def _ended(self, reader: _Reader) -> None:
        exchange = reader.exchange
        if exchange.stalled:
            raise TransportFailure(Outcome.TIMEOUT, self._stall_text())
        exchange.body_complete = reader.ends_with_connection
        if not exchange.status:
            raise TransportFailure(Outcome.TRUNCATED, "the connection was closed before any answer")

    def _wait_until(self, sock: socket.socket, exchange: Exchange, leave_at: float) -> bool:
        """Limits the next read to the moment of leaving; False: it has come."""
        left = leave_at - time.perf_counter()
        if left <= 0:
            exchange.left = True
            return False
        sock.settimeout(min(left, self._limit_s))
        return True

    def _stall_text(self) -> str:
        return f"no byte for {self._limit_s:g} s"

    def _connected(self, exchange: Exchange) -> socket.socket:
        if self._socket is not None and self._is_stale(self._socket):
            self.close()
        if self._socket is None:
            began = time.perf_counter()
            try:
                self._socket = self._connect()
            finally:
                exchange.connect_s = time.perf_counter() - began
        self._socket.settimeout(self._read_timeout_s)
        return self._socket

    def _connect(self) -> socket.socket:
        target = self._target
        try:
            sock = socket.create_connection((target.host, target.port), timeout=self._connect_timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=target.host)
        except OSError as error:
            raise TransportFailure(Outcome.CONNECT, f"no connection to {target.host}:{target.port}: {error}") from error
        return sock

    @staticmethod
    def _is_stale(sock: socket.socket) -> bool:
        """Whether the server closed the idle connection (or sent something unasked, which is as bad)."""
        sock.settimeout(0.0)
        try:
            sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True


def build_request(
    method: str,
    path: str,
    target: Target,
    body: bytes = b"",
    *,
    api_key: str | None = None,
    request_id: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """The bytes of one request."""
    lines = [
        f"{method} {target.prefix}{path} HTTP/1.1",
        f"host: {target.netloc}",
        "accept: */*",
        "user-agent: vllm-gateway-loadtest",
    ]
    if api_key:
        lines.append(f"authorization: Bearer {api_key}")
    if request_id:
        lines.append(f"x-request-id: {request_id}")
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
