"""The observer's short way through leaves everything as the long way would, or does nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.observer import StreamObserver
from gateway.types import Family

NOTED = (
    "cached_tokens",
    "done",
    "error",
    "events",
    "finish_reasons",
    "malformed",
    "next_sequence",
    "output_tokens",
    "prompt_tokens",
    "token_events",
    "at_boundary",
)


def noted(observer: StreamObserver) -> dict[str, object]:
    return {name: getattr(observer, name) for name in NOTED}


def event(delta: dict[str, object], **choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, **choice}]}).encode() + b"\n\n"


PLAIN = [event({"content": "a"}), event({"content": ""}), event({"role": "assistant"}), event({"reasoning": "b"})]
OTHER = [
    event({}, finish_reason="stop"),
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
    b'data: {"error":{"message":"m","code":500}}\n\n',
    b"data: [DONE]\n\n",
    b": comment\n\n",
    b"data: {\ndata: }\n\n",
    b"data: nothing\n\n",
    b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":3}}\n\n',
    b'event: error\ndata: {"choices":[{"delta":{"content":"x"}}]}\n\n',
    event({"content": "x"}).replace(b"\n", b"\r\n"),
    event({"content": "x"})[:-1],
    event({"content": "x"})[:9],
    b"",
    b"\n\n",
]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(st.sampled_from([*PLAIN, *OTHER]), min_size=1, max_size=4).map(b"".join), max_size=8))
def test_both_ways_note_the_same(reads: list[bytes]) -> None:
    """After any reads before it: a read taken the short way changes what the long way changes, else nothing at all."""
    short, long = StreamObserver(Family.CHAT), StreamObserver(Family.CHAT)
    for read in reads:
        before = noted(short)
        found = short.take_plain(read)
        if found < 0:
            assert before == noted(short)
            found = short.feed(read)

        assert long.feed(read) == found
        assert noted(long) == noted(short)


@pytest.mark.parametrize("read", [*PLAIN, b"".join(PLAIN)])
def test_the_usual_read_takes_the_short_way(read: bytes) -> None:
    """Otherwise the whole effort is for nothing."""
    assert StreamObserver(Family.CHAT).take_plain(read) >= 0


@pytest.mark.parametrize("read", OTHER)
def test_whatever_must_be_noted_takes_the_long_way(read: bytes) -> None:
    """Finish reasons, usage, errors, markers, and every unusual spelling."""
    assert StreamObserver(Family.CHAT).take_plain(read) == -1


@pytest.mark.parametrize("family", [Family.RESPONSES, Family.MESSAGES])
def test_other_families_take_the_long_way(family: Family) -> None:
    """Their events are of another shape."""
    assert StreamObserver(family).take_plain(PLAIN[0]) == -1
