"""
HTTP/1.1 on the server's side, byte by byte: building heads and chunks, and reading requests as they arrive.

The reader is lenient on purpose and keeps everything as received (order, case, framing, raw bytes): its users assert
what a proxy really sent, so it must not tidy up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal

Framing = Literal["none", "content-length", "chunked"]
Headers = tuple[tuple[str, str], ...]

LAST_CHUNK = b"0\r\n\r\n"
JSON: Headers = (("content-type", "application/json"),)
EVENT_STREAM: Headers = (("content-type", "text/event-stream; charset=utf-8"),)


def response_head(status: int, headers: Headers = (), *, version: str = "1.1", reason: str | None = None) -> bytes:
    """Status line and headers, exactly those given; no framing header is added."""
    if reason is None:
        reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    lines = [f"HTTP/{version} {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def response(status: int, body: bytes, headers: Headers = JSON) -> bytes:
    """A whole response with content-length."""
    framed = (*headers, ("content-length", str(len(body))))
    return response_head(status, (("server", "uvicorn"), *framed)) + body


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; empty data would end the body, so it is refused."""
    if not data:
        raise ValueError("expected at least one byte, found none: an empty chunk ends the body, send LAST_CHUNK")
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@dataclass(slots=True)
class ReceivedRequest:
    """One request as it came in; grows until `complete`."""

    method: str = ""
    target: str = ""
    version: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    raw: bytearray = field(default_factory=bytearray)
    framing: Framing = "none"
    chunk_sizes: list[int] = field(default_factory=list)
    head_complete: bool = False
    complete: bool = False

    def header(self, name: str) -> str | None:
        """The first value of a header, any case; None when absent."""
        return next(iter(self.header_values(name)), None)

    def header_values(self, name: str) -> list[str]:
        """All values of a header, in order of arrival."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


class RequestReader:
    """
    Splits the bytes of one connection into requests, pipelined ones included.

    `feed` returns the requests that began, progressed or ended with these bytes. Bytes that are no HTTP end up in the
    current request's `raw`; the reader then waits for ever, as a test would want to see.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._current: ReceivedRequest | None = None
        self._remaining = 0

    @property
    def current(self) -> ReceivedRequest | None:
        """The request being received, None between two."""
        return self._current

    def feed(self, data: bytes) -> list[ReceivedRequest]:
        """Takes bytes off the wire; returns the requests touched, in order."""
        self._buffer += data
        return list(self._advance())

    def _advance(self) -> Iterator[ReceivedRequest]:
        while self._buffer:
            request = self._current
            if request is None:
                request = self._current = ReceivedRequest()
            progressed = self._body(request) if request.head_complete else self._head(request)
            if request.complete:
                self._current = None
                yield request
            elif not progressed:
                break
        if self._current is not None:
            yield self._current

    def _take(self, request: ReceivedRequest, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        request.raw += taken
        return taken

    def _head(self, request: ReceivedRequest) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = self._take(request, end + 4)[:-4].decode("latin-1").split("\r\n")
        request.method, request.target, request.version = ([*lines[0].split(" ", 2), "", ""])[:3]
        for line in lines[1:]:
            name, _, value = line.partition(":")
            request.headers.append((name, value.strip()))
        request.head_complete = True
        if "chunked" in (request.header("transfer-encoding") or "").lower():
            request.framing = "chunked"
        elif (length := request.header("content-length")) is not None:
            request.framing, self._remaining = "content-length", int(length)
        request.complete = request.framing == "none" or (request.framing == "content-length" and self._remaining == 0)
        return True

    def _body(self, request: ReceivedRequest) -> bool:
        if request.framing == "content-length":
            piece = self._take(request, min(self._remaining, len(self._buffer)))
            request.body += piece
            self._remaining -= len(piece)
            request.complete = self._remaining == 0
            return True
        line_end = self._buffer.find(b"\r\n")
        if line_end < 0:
            return False
        size = int(bytes(self._buffer[:line_end]).split(b";")[0], 16)
        if size == 0:
            return self._trailer(request, line_end)
        if len(self._buffer) < line_end + 2 + size + 2:
            return False
        request.body += self._take(request, line_end + 2 + size + 2)[line_end + 2 : -2]
        request.chunk_sizes.append(size)
        return True

    def _trailer(self, request: ReceivedRequest, line_end: int) -> bool:
        plain_end = bytes(self._buffer[line_end : line_end + 4]) == b"\r\n\r\n"
        end = line_end + 4 if plain_end else self._buffer.find(b"\r\n\r\n", line_end) + 4
        if end < line_end + 4:
            return False
        self._take(request, end)
        request.complete = True
        return True
