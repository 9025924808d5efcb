"""
What the SDKs do with each kind of bytes (openai-python, openai-node, anthropic), as the observer sees it.

What makes an SDK raise must not look like a success here, and what an SDK passes over must not look like a failure.
"""

from __future__ import annotations

import pytest

from gateway.protocol.observer import Ending, StreamObserver
from gateway.protocol.sse import HEARTBEAT
from gateway.types import Family

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"Z"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"

# bytes between the first token and the end: (extra bytes, events without an object, how the stream is judged)
BETWEEN = {
    "comment": (b": comment\n\n", 0, Ending.COMPLETE),
    "heartbeat": (HEARTBEAT, 0, Ending.COMPLETE),
    "event-without-data": (b"event: ping\n\n", 0, Ending.COMPLETE),
    "empty-data": (b"data:\n\n", 1, Ending.COMPLETE),
    "retry": (b"retry: 3000\n\n", 0, Ending.COMPLETE),
    "id-then-comment": (b"id: 1\n" + TOKEN + b": c\n\n", 0, Ending.COMPLETE),
    "empty-object": (b"data: {}\n\n", 0, Ending.COMPLETE),
    "ping-object": (b'data: {"type":"ping"}\n\n', 0, Ending.COMPLETE),
    "unicode-line-ends": ('data: {"x":"\u2028\u0085"}\n\n'.encode(), 0, Ending.COMPLETE),
    "nan": (b'data: {"choices":[],"x":NaN,"y":-Infinity}\n\n', 0, Ending.COMPLETE),
    "missing-blank-line": (b"data: {}\ndata: {}\n\n", 1, Ending.COMPLETE),
    "multi-line-data": (b'data: {"choices":\ndata: []}\n\n', 0, Ending.COMPLETE),
    "error-event": (b'data: {"error":{"message":"m","type":"t","code":500}}\n\n', 0, Ending.ERROR),
    "named-error-event": (b'event: error\ndata: {"error":{"message":"m"}}\n\n', 0, Ending.ERROR),
    "null-error": (b'data: {"choices":[],"error":null}\n\n', 0, Ending.COMPLETE),
    "empty-error": (b'data: {"error":{}}\n\n', 0, Ending.ERROR),
    "flat-error": (b'data: {"object":"error","message":"m"}\n\n', 0, Ending.ERROR),
    "text-error": (b"data: Internal Server Error\n\n", 1, Ending.COMPLETE),
    "text-line": (b"Internal Server Error\n\n", 0, Ending.COMPLETE),
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_c11_c12_bytes_between_events(name: str, size: int) -> None:
    """In whatever pieces they arrive; the token before and the end after are seen in every case."""
    extra, malformed, ending = BETWEEN[name]
    text = TOKEN + extra + LAST + DONE
    observer = StreamObserver(Family.CHAT)
    for at in range(0, len(text), size):
        observer.feed(text[at : at + size])

    assert (malformed, ending) == (observer.malformed, observer.verdict().ending)
    assert observer.token_events >= 1
    assert ({0: "stop"}, True) == (observer.finish_reasons, observer.done)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_c10_line_ends_and_a_byte_order_mark(end: str, mark: bytes) -> None:
    """openai-python loses the first event after a mark; the observer does not."""
    text = (TOKEN + LAST + DONE).decode().replace("\n", end).replace("data: ", "data:").encode()
    observer = StreamObserver(Family.CHAT)

    assert 1 == observer.feed(mark + text)
    assert Ending.COMPLETE is observer.verdict().ending


def test_c05_an_event_without_its_blank_line_is_lost() -> None:
    """As it is in the SDKs: the finish reason in it does not count."""
    observer = StreamObserver(Family.CHAT)
    observer.feed(TOKEN + LAST[:-1])

    assert Ending.INCOMPLETE is observer.verdict().ending
    assert not observer.at_boundary


def test_c05_a_last_marker_without_its_blank_line_harms_nothing() -> None:
    """The answer is complete without it."""
    observer = StreamObserver(Family.CHAT)
    observer.feed(TOKEN + LAST + DONE[:-2])

    assert (False, Ending.COMPLETE) == (observer.done, observer.verdict().ending)


def test_c14_the_heartbeat_is_a_comment() -> None:
    """No id, no retry, no event name, no data; a whole number of lines."""
    assert HEARTBEAT.startswith(b":")
    assert HEARTBEAT.endswith(b"\n\n")
    assert 2 == HEARTBEAT.count(b"\n")
