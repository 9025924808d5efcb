"""Whole chunks are recognised exactly where the real parser would have found the same body."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy.chunks import whole_chunks

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Parsed:
    """What the real parser makes of chunks: the body, and whether it stands between two of them at the end."""

    def __init__(self, data: bytes) -> None:
        self.body = b""
        self.between = False
        self.complete = False
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(HEAD)
        parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_chunk_header(self) -> None:
        self.between = False

    def on_chunk_complete(self) -> None:
        self.between = True

    def on_message_complete(self) -> None:
        self.complete = True


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5))
def test_whole_chunks_give_the_body_the_parser_gives(bodies: list[bytes]) -> None:
    """Any number of chunks, whatever bytes are in them, line ends included."""
    data = b"".join(map(chunk, bodies))

    assert whole_chunks(data) == Parsed(data).body == b"".join(bodies)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=3), st.data())
def test_a_cut_read_is_recognised_only_between_two_chunks(bodies: list[bytes], data: st.DataObject) -> None:
    """A read that ends anywhere else is for the parser, which must see it from the beginning."""
    whole = b"".join(map(chunk, bodies))
    piece = whole[: data.draw(st.integers(0, len(whole)))]
    found = whole_chunks(piece)

    if found is not None:
        parsed = Parsed(piece)
        assert parsed.between
        assert found == parsed.body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\r\n\r\n",
        chunk(b"a") + b"0\r\n\r\n",
        b"A\r\n0123456789\r\n",
        b"01\r\na\r\n",
        b"1;x=y\r\na\r\n",
        b" 1\r\na\r\n",
        b"+1\r\na\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b"0x1\r\na\r\n",
        b"1\r\nab\r\n",
        b"2\r\na\r\n",
        b"1\na\n",
        b"1\r\na\n\n",
        b"5\r",
        b"5X",
        chunk(b"abcdef") + b"5\r",
        chunk(b"abcdef") + b"5",
        b"5001\r\n" + b"x" * 0x5001 + b"\r\n",
    ],
)
def test_everything_unusual_is_left_to_the_parser(data: bytes) -> None:
    """The last chunk, extensions, spellings of a size, wrong sizes, wrong line ends: strictness has one home."""
    assert whole_chunks(data) is None
