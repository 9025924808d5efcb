"""
One HTTP/1.1 connection that reads at the socket: every read is timed before it is parsed.

Plain blocking sockets, so the same code runs under gevent (Locust) and in a thread. Proxies are never used. A
connection is kept alive between requests; one that the server has closed meanwhile is replaced before anything is sent,
and a request is never sent twice.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from loadtest.outcomes import Outcome
from loadtest.target import Target

READ_SIZE = 262_144
ERROR_BODY_LIMIT = 2_000

OnData = Callable[[float, bytes], bool]
"""Gets (time of the read, piece of a 200 body); returns True when the answer is complete for the caller."""


class TransportFailure(Exception):
    """The exchange failed below the level of the answer."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail


@dataclass(slots=True)
class Exchange:
    """What came back. `sent_at` is perf_counter seconds; a body that is not passed on is kept up to a limit."""

    sent_at: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    body_complete: bool = False
    sent: bool = False


class _Reader:
    """httptools callbacks of one response."""

    def __init__(self, exchange: Exchange, on_data: OnData | None) -> None:
        self.exchange, self._on_data = exchange, on_data
        self.parser = httptools.HttpResponseParser(self)
        self.satisfied = False
        self.keep_alive = False
        self.now = 0.0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.exchange.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.exchange.status = self.parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        if self.exchange.status == 200 and self._on_data is not None:
            self.satisfied = self._on_data(self.now, piece) or self.satisfied
        elif self._on_data is None or len(self.exchange.body) < ERROR_BODY_LIMIT:
            self.exchange.body += piece

    def on_message_complete(self) -> None:
        self.exchange.body_complete = self.exchange.status >= 200
        # Asked here: once the message is over, the parser has forgotten and says no.
        self.keep_alive = self.parser.should_keep_alive()

    @property
    def ends_with_connection(self) -> bool:
        headers = self.exchange.headers
        framed = "content-length" in headers or "transfer-encoding" in headers
        return self.exchange.status >= 200 and not framed


class Client:
    """One connection to one target, opened when first needed."""

    def __init__(self, target: Target, *, connect_timeout_s: float = 10.0, read_timeout_s: float = 120.0) -> None:
        self._target = target
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """Closes the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def exchange(self, request: bytes, on_data: OnData | None = None, into: Exchange | None = None) -> Exchange:
        """
        Sends a request and reads its answer; a 200 body goes to `on_data`, any other is kept.

        `into` is filled while it happens, so that a caller who is interrupted knows how far it got.

        Raises:
            TransportFailure: no connection, reset, timeout, bytes that are no HTTP, or a cut body.
        """
        exchange = into if into is not None else Exchange()
        sock = self._connected()
        reader = _Reader(exchange, on_data)
        keep = False
        try:
            exchange.sent_at = time.perf_counter()
            exchange.sent = True
            sock.sendall(request)
            self._read(sock, reader)
            keep = exchange.body_complete and reader.keep_alive
        except TimeoutError as error:
            raise TransportFailure(Outcome.TIMEOUT, f"no byte for {self._read_timeout_s:g} s") from error
        except (ConnectionResetError, BrokenPipeError) as error:
            raise TransportFailure(Outcome.RESET, f"connection reset: {error}") from error
        except httptools.HttpParserError as error:
            raise TransportFailure(Outcome.MALFORMED, f"not HTTP: {error}") from error
        finally:
            if not keep:
                self.close()
        return exchange

    def _read(self, sock: socket.socket, reader: _Reader) -> None:
        exchange = reader.exchange
        while not exchange.body_complete:
            try:
                data = sock.recv(READ_SIZE)
            except TimeoutError:
                if reader.satisfied:
                    return  # the answer is complete, only the end of the body is missing
                raise
            reader.now = time.perf_counter()
            if not data:
                exchange.body_complete = reader.ends_with_connection
                if not exchange.status:
                    raise TransportFailure(Outcome.TRUNCATED, "the connection was closed before any answer")
                return
            reader.parser.feed_data(data)
            if reader.satisfied:
                sock.settimeout(1.0)

    def _connected(self) -> socket.socket:
        if self._socket is not None and self._is_stale(self._socket):
            self.close()
        if self._socket is None:
            self._socket = self._connect()
        self._socket.settimeout(self._read_timeout_s)
        return self._socket

    def _connect(self) -> socket.socket:
        target = self._target
        try:
            sock = socket.create_connection((target.host, target.port), timeout=self._connect_timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.tls:
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=target.host)
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
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
