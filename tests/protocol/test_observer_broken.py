"""The stream observer on what no worker should send: it neither raises nor goes blind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.observer import Ending
from gateway.types import Family
from tests.protocol.observed import DONE, LAST, TOKEN, chunk, event, observe, pieces


@pytest.mark.parametrize("payload", ["null", "[]", "1", '"x"', "plain text", "{broken", "[" * 5000])
def test_c16_payloads_that_are_no_object_are_counted_and_passed_over(payload: str) -> None:
    """The stream is judged by its other events."""
    observer = observe(event(TOKEN), event(payload), event(LAST), DONE)

    assert (1, Ending.COMPLETE) == (observer.malformed, observer.verdict().ending)


def test_c16_an_empty_object_is_nothing() -> None:
    """Neither malformed nor a token."""
    observer = observe(event("{}"))

    assert (1, 0, 0) == (observer.events, observer.token_events, observer.malformed)


def test_c62_nan_and_infinity_do_not_blind_the_observer() -> None:
    """Log probabilities of -Infinity are relayed as they are, and the token is seen."""
    text = event(chunk(content="a")).replace(b'"logprobs":null', b'"logprobs":{"x":-Infinity,"y":NaN}')

    observer = observe(text)

    assert (1, 0) == (observer.token_events, observer.malformed)


def test_c69_c71_broken_text_does_not_blind_the_observer() -> None:
    """Invalid UTF-8 and lone surrogates inside the content."""
    observer = observe(
        event(TOKEN).replace(b"Z", b"\xff\xfe"), event(TOKEN).replace(b"Z", b"\\ud83d"), event(LAST), DONE
    )

    assert (2, 0, Ending.COMPLETE) == (observer.token_events, observer.malformed, observer.verdict().ending)


def test_fields_of_unexpected_types_count_as_absent() -> None:
    """A chunk that fits the schema nowhere is still no error."""
    odd = {
        "choices": [
            5,
            {"index": "x", "delta": 5, "text": 5, "finish_reason": 5},
            {"delta": {}, "finish_reason": "stop"},
        ]
    }

    observer = observe(event(odd), event({"choices": "x"}))

    assert (0, {0: "stop"}, None) == (observer.token_events, observer.finish_reasons, observer.error)


def test_an_oversized_event_counts_as_a_token_event_only_where_it_can_be_one() -> None:
    """So large an event of a chat stream carries output; after the end nothing counts."""
    huge = pieces(event(chunk(content="x" * 300_000)))

    assert 1 == observe(*huge).token_events
    assert (0, 2) == (observe(event(LAST), DONE, *huge).token_events, observe(event(LAST), DONE, *huge).events)
    for name, expected in (("response.output_text.delta", 1), ("response.output_text.done", 0)):
        odd = pieces(event({"x": "x" * 5_000_000}, name=name))
        assert expected == observe(*odd, family=Family.RESPONSES).token_events


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize(
    "payload",
    [
        '{"x":' + "[" * 100_000,
        '{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":' + "1" * 5000 + "}}",
        '{"choices":[{"index":' + "1" * 5000 + ',"finish_reason":"stop"}]}',
        '{"type":"response.x.delta","sequence_number":' + "1" * 5000 + "}",
        '{"error":{"code":' + "1" * 400 + ',"message":{"a":1},"type":[]}}',
        '{"type":"response.completed","response":[]}',
        '{"type":["x"],"response":5}',
        '{"type":"message_start","message":[]}',
        '{"type":"message_delta","delta":[]}',
    ],
    ids=range(10),
)
def test_no_event_makes_the_observer_raise(family: Family, payload: str) -> None:
    """Absurd nesting, absurd numbers, wrong types: a worker's fault must not become an exception in the relay."""
    observer = observe(event(payload), event(payload, name="x"), family=family)

    assert observer.events in (1, 2)
    assert observer.verdict().detail


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"data: ", b"\n\n", b"\r", b"{", b'"choices":[', b"]}"])))
@settings(deadline=None, max_examples=100)
def test_no_bytes_make_the_observer_raise(chunks: list[bytes]) -> None:
    """Whatever arrives."""
    for family in Family:
        assert observe(*chunks, family=family).verdict().ending in Ending
