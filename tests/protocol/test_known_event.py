"""Events recognised by what they share with an earlier one: never one that the decoder would judge otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.protocol.known_event import KnownEvents, around_text, known_events
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


Around = tuple[bytes, bytes]


def events_in(around: Around, data: bytes, start: int = 0) -> int:
    """How many events `data` consists of from `start` on, with that around their texts."""
    return known_events(data, start, len(data), *around)


def is_in(around: Around, data: bytes, start: int = 0) -> bool:
    return events_in(around, data, start) == 1


def known(event: bytes) -> Around:
    found = around_text(event + END)
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
    assert around_text(event + END) is None


def test_from_a_long_event_nothing_is_learnt() -> None:
    """Every place where the text may be is tried: what a worker sends must not decide how long that takes."""
    call = {"function": {"arguments": "x"}}
    event = chunk({"tool_calls": [call] * 20_000})

    assert around_text(event + END) is None
    assert around_text(chunk({"content": "x" * 5000}) + END) is None


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


def taught(*events: bytes) -> KnownEvents:
    """A worker's kinds after two streams of each."""
    worker = KnownEvents()
    for event in events:
        for _ in range(2):
            assert worker.learn(event) is not None
        assert worker.around_text(event) is not None
    return worker


@given(PLAIN_TEXT, st.integers(1, 10**15 - 1), PLAIN_TEXT, SEPARATORS)
def test_events_of_other_streams_are_recognised(
    identity: str, created: int, text: str, separators: tuple[str, str]
) -> None:
    """They differ in id and time; every stream would have to be learnt otherwise."""
    worker = taught(of_stream("chatcmpl-1", 1795969465, "x", separators))
    event = of_stream(identity, created, text, separators)

    around = worker.around_text(event)
    assert around is not None
    assert b"".join([around[0], text.encode(), around[1]]) == event


@pytest.mark.parametrize("identity", ['say "hi"', "a\\b", "\x01", "안녕"])
def test_an_unusual_id_is_the_decoders(identity: str) -> None:
    worker = taught(of_stream("chatcmpl-1", 1795969465, "x"))

    assert worker.around_text(of_stream(identity, 1795969465, "x")) is None


@pytest.mark.parametrize("created", [0, -1, 1.5, "1", None, 10**15, True])
def test_an_unusual_time_is_the_decoders(created: object) -> None:
    worker = taught(of_stream("chatcmpl-1", 1795969465, "x"))

    assert worker.around_text(of_stream("chatcmpl-1", created, "x")) is None


@given(st.data())
def test_whatever_the_bytes_what_looks_like_another_streams_carries_tokens(data: st.DataObject) -> None:
    event = bytearray(of_stream("chatcmpl-1", 1795969465, "some text")[:-2])
    worker = taught(bytes(event) + END)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(event)))
        event[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))

    assert worker.around_text(bytes(event) + END) is None or (glance(bytes(event)) == 1 and b"\n" not in event)


def test_a_few_kinds_are_known_at_a_time() -> None:
    """The oldest makes room: what a worker sends does not decide how many there are."""
    events = [of_stream("chatcmpl-1", 1795969465, "x").replace(b'"m"', b'"m%d"' % number) for number in range(10)]
    worker = taught(*events)

    assert [worker.around_text(event) is not None for event in events] == [False] * 2 + [True] * 8


def test_streams_whose_events_all_differ_push_nothing_out() -> None:
    """With log probabilities, no two events are of a kind: one client that asks for them costs the others nothing."""
    usual = of_stream("chatcmpl-1", 1795969465, "x")
    worker = taught(usual)
    for number in range(1000):
        odd = usual.replace(b'"logprobs":null', b'"logprobs":%d' % number)
        assert worker.around_text(odd) is None
        assert worker.learn(odd) is not None

    assert worker.around_text(usual) is not None


def test_a_kind_without_id_and_time_is_the_streams_own() -> None:
    event = chunk({"content": "x"}) + END
    worker = KnownEvents()
    for _ in range(3):
        assert worker.learn(event) is not None

    assert worker.around_text(event) is None
