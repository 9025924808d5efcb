"""A raw HTTP/1.1 client: it sees every byte, every read and how a connection ended."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """
    A response as far as it has come.

    `complete` is True iff its framing ended as promised; `chunks` are the HTTP chunks in order (one entry for other
    framings).
    """

    status: int
    headers: list[tuple[str, str]]
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def header(self, name: str) -> str | None:
        """The only value of a header, None without; two values are an error."""
        found = self.all(name)
        assert len(found) <= 1, found
        return found[0] if found else None

    def all(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """The events of an LF stream, with their blank lines."""
        return [event + b"\n\n" for event in self.body.split(b"\n\n") if event]


class RawConnection:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> Answer:
        """Read status and headers."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *lines = head[:-4].split(b"\r\n")
        pairs = [text.decode("latin-1").partition(": ") for text in lines]
        return Answer(int(line.split(b" ")[1]), [(name, value) for name, _, value in pairs])

    async def chunk(self, answer: Answer) -> bytes:
        """Read one chunk of a chunked body; b"" at the end."""
        size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
        data = (await self.reader.readexactly(size + 2))[:-2]
        if data:
            answer.chunks.append(data)
        else:
            answer.complete = True
        return data

    async def rest(self, answer: Answer, *, head: bool = False) -> Answer:
        """Read what remains; a broken body leaves `complete` False."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if head or answer.status in (204, 304):
                answer.complete = True
            elif answer.header("transfer-encoding") == "chunked":
                while not answer.complete:
                    await self.chunk(answer)
            else:
                length = answer.header("content-length")
                assert length is not None, answer.headers
                answer.chunks.append(await self.reader.readexactly(int(length)))
                answer.complete = True
        return answer

    async def answer(self, *, head: bool = False) -> Answer:
        """Read a whole response."""
        return await self.rest(await self.head(), head=head)

    async def at_end(self) -> bool:
        """True iff the server has closed the connection and nothing more came."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Leave with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        """Leave with FIN."""
        self.writer.close()

    def half_close(self) -> None:
        """FIN in one direction only."""
        self.writer.write_eof()


@asynccontextmanager
async def connect(port: int, *, receive_buffer: int | None = None) -> AsyncIterator[RawConnection]:
    """A connection that is gone afterwards."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**16)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


def post(path: str, body: object, headers: Mapping[str, str] | None = None) -> bytes:
    """A POST; anything but bytes becomes compact JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return request("POST", path, {"content-type": "application/json", **(headers or {})}, data)


def request(method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """A request with content-length."""
    lines = [f"{method} {path} HTTP/1.1", "host: gateway.test"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chat(*, stream: bool = True, **extra: Any) -> dict[str, Any]:
    """A chat request body."""
    return {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **extra}


CHAT = "/v1/chat/completions"


async def ask(port: int, data: bytes, *, head: bool = False) -> Answer:
    """One request on its own connection."""
    async with connect(port) as connection:
        connection.send(data)
        return await connection.answer(head=head)
