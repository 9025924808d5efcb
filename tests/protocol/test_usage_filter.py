"""The usage filter: exactly the forced usage event disappears, and nothing is held that need not be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.usage_filter import HELD_BYTES, UsageFilter

HEAD = '"id":"c","object":"chat.completion.chunk","created":1,"model":"m"'
CONTENT = f'{{{HEAD},"choices":[{{"index":0,"delta":{{"content":"a \\"choices\\":[] b"}},"finish_reason":null}}]}}'
USAGE = f'{{{HEAD},"choices":[],"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}'
SPACED = json.dumps(json.loads(USAGE))
REVERSED = f'{{"usage":{{"prompt_tokens":1}},{HEAD},"choices":[ ]}}'
KEPT = [
    CONTENT,
    f'{{{HEAD},"choices":[],"usage":null}}',
    f'{{{HEAD},"choices":[]}}',
    '{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1}}',
    '{"x":{"choices":[]},"choices":[{}],"usage":{}}',
    '{"choices":[], broken',
    '{"error":{"message":"m"}}',
    "[DONE]",
    "null",
]
DROPPED = [USAGE, SPACED, REVERSED]
ENDS = ["\n", "\r\n", "\r"]


def frame(payload: str, end: str = "\n", head: str = "data: ") -> bytes:
    return f"{head}{payload}{end}{end}".encode()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KEPT + DROPPED), st.sampled_from(ENDS), st.sampled_from(["data: ", "data:", ": c\ndata: "])
        ),
        max_size=8,
    ),
    st.data(),
)
@settings(deadline=None, max_examples=200)
def test_c58_only_usage_events_disappear(events: list[tuple[str, str, str]], data: st.DataObject) -> None:
    """Whatever the cuts and line ends: what comes out is the input without exactly those events."""
    text = b"".join(frame(*item) for item in events)
    expected = b"".join(frame(*item) for item in events if item[0] in KEPT)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    usage_filter = UsageFilter()

    out = b"".join(
        usage_filter.feed(text[start:stop]) for start, stop in zip([0, *places], [*places, len(text)], strict=True)
    )

    assert expected == out + usage_filter.flush()


@given(st.lists(st.sampled_from(KEPT + DROPPED), max_size=4), st.sampled_from(ENDS))
@settings(deadline=None, max_examples=40)
def test_c58_one_byte_at_a_time(payloads: list[str], end: str) -> None:
    """The hardest cut of all."""
    usage_filter = UsageFilter()

    out = b"".join(usage_filter.feed(bytes([byte])) for payload in payloads for byte in frame(payload, end))

    assert b"".join(frame(payload, end) for payload in payloads if payload in KEPT) == out + usage_filter.flush()


@given(st.binary(max_size=200), st.integers(1, 50))
@settings(deadline=None, max_examples=100)
def test_what_is_no_event_stream_passes(noise: bytes, size: int) -> None:
    """Any bytes at all, in any pieces."""
    usage_filter = UsageFilter()

    out = b"".join(usage_filter.feed(noise[at : at + size]) for at in range(0, len(noise), size))

    assert noise == out + usage_filter.flush()


def test_an_empty_list_is_found_behind_one_that_is_not() -> None:
    """Of a whole event every `choices` is looked at, however it is spaced."""
    behind = '{"x":[{"choices":[{}]}],"choices"\t:\t[\t],"usage":{"prompt_tokens":1}}'

    assert b"" == UsageFilter().feed(frame(behind))


def test_a_whole_event_is_never_held() -> None:
    """The usual chunk goes through as the same object."""
    text = frame(CONTENT.replace('\\"choices\\":[]', ""))

    assert text is UsageFilter().feed(text)


@pytest.mark.parametrize(
    ("start", "held"),
    [
        (b'data: {"id":"c","choices":[', True),
        (b'data: {"id":"c","choices":[ ]', True),
        (b'data: {"id":"c","choices":[{', False),
        (b"d", True),
        (b'data: {"pad":"' + b"x" * HELD_BYTES, False),
    ],
)
def test_only_a_start_that_may_still_be_the_usage_event_is_held(start: bytes, held: bool) -> None:
    """Decision 9, and never more than its bound."""
    assert (b"" if held else start) == UsageFilter().feed(start)


def test_a_stream_that_breaks_inside_the_usage_event_gives_back_what_is_held() -> None:
    """The client sees the bytes that were received; the error event that follows needs a blank line first."""
    usage_filter = UsageFilter()
    assert b"" == usage_filter.feed(frame(USAGE)[:40])

    assert frame(USAGE)[:40] == usage_filter.flush()
    assert b"" == usage_filter.flush()


def test_the_lf_of_a_crlf_that_ended_a_dropped_event_is_dropped_with_it() -> None:
    """Cut between the two; after an event that passed, it passes."""
    for payload, expected in ((USAGE, b""), (CONTENT, frame(CONTENT, "\r\n"))):
        usage_filter = UsageFilter()
        text = frame(payload, "\r\n")

        assert expected + b": c\n\n" == usage_filter.feed(text[:-1]) + usage_filter.feed(b"\n: c\n\n")
    usage_filter = UsageFilter()
    assert (
        b"data: x\r\rdata: y"
        == usage_filter.feed(b"data: x\r\r") + usage_filter.feed(b"data: y") + usage_filter.flush()
    )


def test_an_event_nested_beyond_the_stack_passes() -> None:
    """It is no usage event that anybody forced."""
    text = frame('{"choices":[],"usage":{"x":' + "[" * 100_000 + "]" * 100_000 + "}}")

    assert text == UsageFilter().feed(text)
