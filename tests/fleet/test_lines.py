"""Lines of the control channel, which both of its ends read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.messages import Lines


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"\n", b"\n\n", b"a\nb", b"x" * 5000])))
@settings(deadline=None, max_examples=200)
def test_lines_are_the_same_however_they_are_cut(pieces: list[bytes]) -> None:
    """In order, each once, when its end has come and not before; what is unfinished is known all the time."""
    lines, found, text = Lines(), list[bytes](), b""
    for piece in pieces:
        found += lines.feed(piece)
        text += piece
        *whole, rest = text.split(b"\n")

        assert whole == found
        assert len(rest) == lines.unfinished
