"""Events recognised by what they share with an earlier one: never one that the decoder would judge otherwise."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.protocol.known_event import END, KnownEvent
from gateway.protocol.observer import glance

SEPARATORS = st.sampled_from([(",", ":"), (", ", ": ")])
PLAIN_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'), min_size=1)


def chunk(delta: dict[str, object], separators: tuple[str, str] = (",", ":"), **choice: object) -> bytes:
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **choice}],
    }
    return b"data: " + json.dumps(document, separators=separators, ensure_ascii=False).encode()


def known(event: bytes) -> KnownEvent:
    found = KnownEvent.of(event)
    assert found is not None
    return found


@given(PLAIN_TEXT, PLAIN_TEXT, SEPARATORS)
def test_plain_text_in_the_same_place_is_recognised(first: str, second: str, separators: tuple[str, str]) -> None:
    assert known(chunk({"content": first}, separators)).is_in(
        b"1f\r\n" + chunk({"content": second}, separators) + END, 4
    )


def test_the_text_of_completions_is_recognised() -> None:
    event = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":"%b","logprobs":null,"finish_reason":null}]}'

    assert known(event % b" one").is_in(event % b" two" + END, 0)


@given(st.text(), SEPARATORS)
@example('quote " and \\ backslash', (",", ":"))
@example("", (",", ":"))
@example("\x00\x1f\x7f", (",", ":"))
@example("안녕 😀", (",", ":"))
def test_whatever_the_text_what_is_recognised_carries_tokens(text: str, separators: tuple[str, str]) -> None:
    event = chunk({"content": text}, separators)

    assert glance(event) == 1 or not known(chunk({"content": "x"}, separators)).is_in(event + END, 0)


@given(st.data())
def test_whatever_the_bytes_what_is_recognised_carries_tokens(data: st.DataObject) -> None:
    """An event in which any bytes were replaced, removed or added: it is still one, or it is not recognised."""
    event = bytearray(chunk({"content": "some text"}))
    template = known(bytes(event))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(event)))
        event[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))

    assert not template.is_in(bytes(event) + END, 0) or (glance(bytes(event)) == 1 and b"\n" not in event)


@pytest.mark.parametrize(
    "event",
    [
        chunk({"content": "x"}, finish_reason="stop"),
        chunk({"content": ""}),
        chunk({"role": "assistant"}),
        chunk({"content": "x", "reasoning": "y"}),
        chunk({"tool_calls": [{"function": {"arguments": '{"content":"x"}'}}]}),
        chunk({"tool_calls": [{"function": {"arguments": "x"}, "content": "y"}]}),
        chunk({"content": 'x"'}),
        chunk({"content": None}, text="x", index=[]),
        b"data: [DONE]",
        b'data: {"content":"x"}',
        b'{"content":"x"}',
        b'data: {"choices":[],"usage":{"content":"x"}}',
    ],
    ids=lambda event: event[-60:].decode(),
)
def test_from_what_carries_more_than_its_text_nothing_is_learnt(event: bytes) -> None:
    """Ends, roles, tool calls, reasoning beside content: their successors are decoded, each of them."""
    assert KnownEvent.of(event) is None


def test_another_end_of_the_event_is_not_recognised() -> None:
    """A finish reason, usage, a second event or a cut: what stands behind the text is compared to the last byte."""
    template = known(chunk({"content": "x"}))
    event = chunk({"content": "y"})

    assert not template.is_in(chunk({"content": "y"}, finish_reason="length") + END, 0)
    assert not template.is_in(event + b"\n\n" + event + END, 0)
    assert not template.is_in((event + END)[:-1], 0)
    assert not template.is_in(event + b"\n\n", 0)
    assert not template.is_in(b"", 0)
