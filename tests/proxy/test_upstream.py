"""What a connection to a worker keeps of one answer, and what it brings to the next one."""

from __future__ import annotations

import asyncio
import sys
import weakref

import pytest

from gateway.errors import UpstreamError
from gateway.proxy.upstream import Headers, Shortcut, UpstreamConnection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Socket(asyncio.Transport):
    """A transport that takes everything and knows whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True

    def write(self, data: object) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Reader:
    """A sink that stops the worker with the first bytes, as for a client that takes nothing."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self.connection = connection
        self.data: list[bytes] = []
        self.ended = False

    def on_head(self, status: int, headers: Headers) -> None: ...

    def on_data(self, data: bytes) -> None:
        self.data.append(data)
        self.connection.pause_reading()

    def on_complete(self) -> None:
        self.ended = True

    def on_failed(self, error: UpstreamError) -> None: ...


def opened() -> tuple[UpstreamConnection, Socket]:
    connection, transport = UpstreamConnection(), Socket()
    connection.connection_made(transport)
    return connection, transport


def test_a_connection_that_may_be_used_again_reads() -> None:
    """
    The read that completes an answer may also be the one that fills the client's buffer. Whoever uses the connection
    next has not stopped it, and would wait for ever.
    """
    connection, transport = opened()
    reader = Reader(connection)
    connection.send(reader, b"GET / HTTP/1.1\r\n\r\n", b"")

    connection.data_received(HEAD + b"5\r\nhello\r\n0\r\n\r\n")

    assert (True, [b"hello"]) == (reader.ended, reader.data)
    assert connection.reusable
    assert connection.reading
    assert transport.reading


def test_a_connection_whose_answer_is_complete_is_not_stopped() -> None:
    """Whoever still writes that answer to its client has no say in what is read for the next one."""
    connection, transport = opened()
    connection.send(Reader(connection), b"GET / HTTP/1.1\r\n\r\n", b"")
    connection.data_received(HEAD + b"5\r\nhello\r\n0\r\n\r\n")

    connection.pause_reading()

    assert connection.reading
    assert transport.reading


@pytest.mark.parametrize("late", [False, True], ids=["during", "after"])
def test_an_idle_connection_keeps_nothing_of_its_last_answer(late: bool) -> None:
    """The shortcut belongs to one answer: with it, the answer would live until the next request or the collector."""
    connection, _ = opened()
    reader, shortcut = Reader(connection), Shortcut()
    kept = sys.getrefcount(shortcut)
    connection.send(reader, b"GET / HTTP/1.1\r\n\r\n", b"")
    connection.data_received(HEAD + b"5\r\nhello\r\n")
    if not late:
        connection.take_shortcut(shortcut)
    connection.data_received(b"0\r\n\r\n")
    if late:
        connection.take_shortcut(shortcut)
    ended, alive = reader.ended, weakref.ref(reader)
    del reader

    assert ended
    assert alive() is None
    assert kept == sys.getrefcount(shortcut)
