"""Events recognised by what they share with an earlier one: never one that the decoder would judge otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.protocol.known_event import KnownEvent, KnownEvents, known_events
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


END = b"\n\n"


def events_in(template: KnownEvent, data: bytes, start: int = 0) -> int:
    """How many events of the template's kind `data` consists of from `start` on, all of one stream."""
    begin = start + template.text_begin(data[start:])
    return known_events(data, start, len(data), data[start:begin], template.after) if begin > start else 0


def is_in(template: KnownEvent, data: bytes, start: int = 0) -> bool:
    return events_in(template, data, start) == 1


def known(event: bytes) -> KnownEvent:
    found = KnownEvent.of(event + END)
    assert found is not None
    return found


@given(PLAIN_TEXT, PLAIN_TEXT, SEPARATORS)
def test_plain_text_in_the_same_place_is_recognised(first: str, second: str, separators: tuple[str, str]) -> None:
    assert is_in(
        known(chunk({"content": first}, separators)), b"1f\r\n" + chunk({"content": second}, separators) + END, 4
    )


@pytest.mark.parametrize("text", ['"', "\\", 'say "hi"\n\tand go', "안녕 😀", "é", "\x7f"])
@pytest.mark.parametrize(
    "around",
    [
        lambda text: {"content": text},
        lambda text: {"reasoning": text},
        lambda text: {"reasoning_content": text},
        lambda text: {"tool_calls": [{"index": 0, "function": {"arguments": text}}]},
    ],
    ids=["content", "reasoning", "reasoning_content", "arguments"],
)
def test_text_in_any_language_and_its_usual_escapes_are_recognised(
    around: Callable[[str], dict[str, object]], text: str
) -> None:
    """Reasoning and arguments of tools are texts, too; whatever is recognised may be learnt from."""
    for template in (known(chunk(around("x"))), known(chunk(around(text)))):
        assert is_in(template, chunk(around(text)) + END)


def test_several_events_are_counted() -> None:
    template = known(chunk({"content": "x"}))
    event = chunk({"content": "y"}) + END

    assert [1, 2, 3] == [events_in(template, event * count) for count in (1, 2, 3)]
    assert events_in(template, event + event[:-1]) == 0
    assert events_in(template, event[:-1]) == 0
    assert events_in(template, b"") == 0


def test_the_text_of_completions_is_recognised() -> None:
    event = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":"%b","logprobs":null,"finish_reason":null}]}'

    assert is_in(known(event % b" one"), event % b" two" + END)


@given(st.text(), SEPARATORS)
@example('quote " and \\ backslash', (",", ":"))
@example("", (",", ":"))
@example("\x00\x1f\x7f", (",", ":"))
@example("안녕 😀", (",", ":"))
def test_whatever_the_text_what_is_recognised_carries_tokens(text: str, separators: tuple[str, str]) -> None:
    event = chunk({"content": text}, separators)

    assert glance(event) == 1 or not is_in(known(chunk({"content": "x"}, separators)), event + END)


@given(st.data())
def test_whatever_the_bytes_what_is_recognised_carries_tokens(data: st.DataObject) -> None:
    """An event in which any bytes were replaced, removed or added: it is still one, or it is not recognised."""
    event = bytearray(chunk({"content": "some text"}))
    template = known(bytes(event))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(event)))
        event[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))

    assert not is_in(template, bytes(event) + END) or (glance(bytes(event)) == 1 and b"\n" not in event)


@pytest.mark.parametrize(
    "event",
    [
        chunk({"content": "x"}, finish_reason="stop"),
        chunk({"content": ""}),
        chunk({"role": "assistant"}),
        chunk({"content": "x", "reasoning": "y"}),
        chunk({"content": "\\ud83d"}).replace(b"\\\\", b"\\"),
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
    assert KnownEvent.of(event + END) is None


def test_from_a_long_event_nothing_is_learnt() -> None:
    """Every place where the text may be is tried: what a worker sends must not decide how long that takes."""
    call = {"function": {"arguments": "x"}}
    event = chunk({"tool_calls": [call] * 20_000})

    assert KnownEvent.of(event + END) is None
    assert KnownEvent.of(chunk({"content": "x" * 5000}) + END) is None


def test_another_end_of_the_event_is_not_recognised() -> None:
    """A finish reason, usage, a second event or a cut: what stands behind the text is compared to the last byte."""
    template = known(chunk({"content": "x"}))
    event = chunk({"content": "y"})

    assert not is_in(template, chunk({"content": "y"}, finish_reason="length") + END)
    assert not is_in(template, event + b"\n\n" + event + END)
    assert not is_in(template, (event + END)[:-1])
    assert not is_in(template, event + b"\r\n\r\n")
    assert not is_in(template, event + END + b"\n")
    assert not is_in(template, event.replace(b"y", b"\xff") + END)
    assert not is_in(template, event.replace(b"y", b"\\ud800") + END)
    assert not is_in(template, event.replace(b"y", b"\n") + END)
    assert not is_in(template, b"")


def of_stream(identity: str, created: object, text: str, separators: tuple[str, str] = (",", ":")) -> bytes:
    document = {
        "id": identity,
        "object": "chat.completion.chunk",
        "created": created,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
    }
    return b"data: " + json.dumps(document, separators=separators, ensure_ascii=False).encode() + END


@given(PLAIN_TEXT, st.integers(1, 10**15 - 1), PLAIN_TEXT, SEPARATORS)
def test_events_of_other_streams_are_recognised(
    identity: str, created: int, text: str, separators: tuple[str, str]
) -> None:
    """They differ in id and time; every stream would have to be learnt otherwise."""
    worker = KnownEvents()
    first = of_stream("chatcmpl-1", 1795969465, "x", separators)
    event = of_stream(identity, created, text, separators)

    assert worker.around_text(event) is None
    assert worker.learn(first) is not None
    around = worker.around_text(event)
    assert around is not None
    assert b"".join([around[0], text.encode(), around[1]]) == event


@pytest.mark.parametrize("identity", ['say "hi"', "a\\b", "\x01", "안녕"])
def test_an_unusual_id_is_the_decoders(identity: str) -> None:
    worker = KnownEvents()
    worker.learn(of_stream("chatcmpl-1", 1795969465, "x"))

    assert worker.around_text(of_stream(identity, 1795969465, "x")) is None


@pytest.mark.parametrize("created", [0, -1, 1.5, "1", None, 10**15, True])
def test_an_unusual_time_is_the_decoders(created: object) -> None:
    worker = KnownEvents()
    worker.learn(of_stream("chatcmpl-1", 1795969465, "x"))

    assert worker.around_text(of_stream("chatcmpl-1", created, "x")) is None


@given(st.data())
def test_whatever_the_bytes_what_looks_like_another_streams_carries_tokens(data: st.DataObject) -> None:
    event = bytearray(of_stream("chatcmpl-1", 1795969465, "some text")[:-2])
    worker = KnownEvents()
    worker.learn(bytes(event) + END)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(event)))
        event[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))

    assert worker.around_text(bytes(event) + END) is None or (glance(bytes(event)) == 1 and b"\n" not in event)


def test_a_few_kinds_are_known_at_a_time() -> None:
    """The oldest makes room: what a worker sends does not decide how many there are."""
    worker = KnownEvents()
    events = [of_stream("chatcmpl-1", 1795969465, "x").replace(b'"m"', b'"m%d"' % number) for number in range(6)]
    for event in events:
        assert worker.around_text(event) is None
        assert worker.learn(event) is not None

    assert [worker.around_text(event) is not None for event in events] == [False, False, True, True, True, True]
