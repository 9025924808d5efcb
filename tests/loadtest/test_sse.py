"""The event splitter: the same events however the bytes are cut and whatever ends the lines."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.sse import EventSplitter

STREAM = (
    'data: {"a":"안녕 😀"}\n\n: comment\n\nevent: x\ndata: one\ndata:two\n\nid: 1\nretry: 5\n\ndata: [DONE]\n\n'
).encode()
EVENTS = ['{"a":"안녕 😀"}'.encode(), b"one\ntwo", b"[DONE]"]


def feed(pieces: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20), ending=st.sampled_from([b"\n", b"\r\n"]))
def test_events_do_not_depend_on_cuts_or_line_ends(cuts: list[int], ending: bytes) -> None:
    """Also inside a character, inside `data:` and between CR and LF."""
    stream = STREAM.replace(b"\n", ending)
    edges = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges)]

    assert feed(pieces) == EVENTS


def test_lone_cr_ends_lines_too() -> None:
    """The last CR waits for the byte after it."""
    assert feed([STREAM.replace(b"\n", b"\r"), b":"]) == EVENTS


@pytest.mark.parametrize("rest", [b"data: lost", b"data: lost\n"])
def test_an_event_without_its_blank_line_is_no_event(rest: bytes) -> None:
    """As the SDKs see it: the answer is cut."""
    assert feed([STREAM + rest]) == EVENTS
