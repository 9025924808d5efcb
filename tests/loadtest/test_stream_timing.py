"""What counts as a token, what is timed, and how a stream ended: pure, on a made-up clock."""

from __future__ import annotations

import json

import pytest

from loadtest.outcomes import Outcome
from loadtest.servers import frames
from loadtest.sse import EventSplitter
from loadtest.stream_timing import StreamTimer

CHAT = frames.ChatStream()


def timed(*events: tuple[float, bytes]) -> StreamTimer:
    """A timer fed with whole events at given times."""
    timer, splitter = StreamTimer(), EventSplitter()
    for now, raw in events:
        for data in splitter.feed(raw):
            timer.event(now, data)
    return timer


def test_ttft_is_the_first_token_not_the_role() -> None:
    """The role event at 0 s and the first token at 300 ms give 300 ms, and no gap between the two."""
    timer = timed(
        (0.0, CHAT.role()),
        (0.3, CHAT.content("a")),
        (0.35, CHAT.content("b")),
        (0.36, CHAT.finish()),
        (0.37, CHAT.usage(5, 3)),
        (0.38, frames.DONE),
    )

    assert timer.first_at == 0.3
    assert timer.last_at == 0.35
    assert list(timer.gaps) == [pytest.approx(0.05)]
    assert timer.outcome(body_complete=True) == (Outcome.OK, "")
    assert timer.other_choices == [0.0, 0.36], "role and empty finish, for tools that count them"


@pytest.mark.parametrize(
    ("event", "bears"),
    [
        (CHAT.role(), False),
        (CHAT.content(""), False),
        (CHAT.usage(5, 3), False),
        (frames.KEEP_ALIVE, False),
        (CHAT.content("x"), True),
        (CHAT.reasoning("x"), True),
        (CHAT.tool_call("{"), True),
        (CHAT.tool_call("", name="f"), True),
        (CHAT.tool_call(""), False),
        (CHAT.finish("length", "x"), True),
        (CHAT.finish("stop", ""), False),
        (frames.CompletionStream().text("x"), True),
        (frames.CompletionStream().text("", finish="stop"), False),
        (CHAT.content("x").replace(b"content", b"reasoning_content"), True),
    ],
)
def test_which_events_bear_tokens(event: bytes, bears: bool) -> None:
    """Text, reasoning and pieces of tool calls do; role, empty, usage and comments do not."""
    assert timed((1.0, event)).token_events == int(bears)


def test_reasoning_is_a_token_but_not_visible() -> None:
    """Decoding has begun; the user sees something only later."""
    timer = timed((1.0, CHAT.reasoning("hm")), (2.0, CHAT.content("x")))

    assert (timer.first_at, timer.first_visible_at) == (1.0, 2.0)


def test_the_tokens_of_each_event_come_from_continuous_usage() -> None:
    """Four at once, then ten: per-token latency is the gap over ten; also when an event without text took some."""
    timer = timed(
        (0.5, CHAT.role(usage=frames.usage_info(5, 0))),
        (1.0, CHAT.content("abcd", usage=frames.usage_info(5, 4))),
        (1.5, CHAT.content("", usage=frames.usage_info(5, 9))),
        (2.0, CHAT.content("e", usage=frames.usage_info(5, 14))),
        (2.1, CHAT.usage(5, 14)),
    )

    assert timer.chunk_tokens == [4, 10]
    assert list(timer.gaps) == [1.0]


def test_tokens_of_events_are_unknown_unless_all_of_them_are_told() -> None:
    """A total at the end says nothing about single events."""
    told = CHAT.content("a", usage=frames.usage_info(5, 1))

    assert timed((1.0, told), (2.0, CHAT.content("b")), (3.0, CHAT.usage(5, 2))).chunk_tokens == []


def test_events_of_one_read_share_its_time() -> None:
    """A gap of zero is what the user got."""
    assert list(timed((1.0, CHAT.content("a") + CHAT.content("b"))).gaps) == [0.0]


@pytest.mark.parametrize(
    ("expected", "events", "complete"),
    [
        (Outcome.IN_BAND_ERROR, [CHAT.content("a"), frames.error_event(), frames.DONE], True),
        (Outcome.IN_BAND_ERROR, [frames.error_event("queue full", "x", 503), frames.DONE], True),
        (Outcome.IN_BAND_ERROR, [frames.flat_error_event(), frames.DONE], True),
        (Outcome.IN_BAND_ERROR, [b'data: {"error":"text"}\n\n'], True),
        (Outcome.TRUNCATED, [CHAT.role(), CHAT.content("a")], True),
        (Outcome.TRUNCATED, [CHAT.role(), CHAT.content("a"), CHAT.finish()], True),
        (Outcome.TRUNCATED, [CHAT.role()], False),
        (Outcome.TRUNCATED, [], True),
        (Outcome.TOKENLESS, [CHAT.role(), CHAT.finish(), frames.DONE], True),
        (Outcome.TOKENLESS, [frames.DONE], True),
        (Outcome.ABORTED, [CHAT.content("a"), CHAT.finish("abort"), frames.DONE], True),
        (Outcome.MALFORMED, [CHAT.content("a"), b"data: oops\n\n", frames.DONE], True),
        (Outcome.MALFORMED, [b"data: 1\n\n", frames.DONE], True),
        (Outcome.OK, [CHAT.content("a"), frames.DONE, frames.error_event()], True),
        (Outcome.OK, [CHAT.content("a").replace(b'"choices"', b'"error":null,"choices"'), frames.DONE], True),
    ],
)
def test_every_ending_has_its_class(expected: Outcome, events: list[bytes], complete: bool) -> None:
    """A 200 is not a success: errors, cuts, aborts and empty answers are told apart; after [DONE] nothing counts."""
    timer = timed(*((float(i), e) for i, e in enumerate(events)))

    assert timer.outcome(body_complete=complete)[0] is expected


def test_tokens_that_say_nothing_are_told_from_none_at_all() -> None:
    """Random weights: the server's usage counts tokens, and no event has any text. The detail says what to do."""
    counted = timed((0.0, CHAT.role()), (0.1, CHAT.finish()), (0.2, CHAT.usage(5, 128)), (0.3, frames.DONE))
    nothing = timed((0.0, CHAT.role()), (0.1, CHAT.finish()), (0.3, frames.DONE))

    assert counted.outcome(body_complete=True)[0] is nothing.outcome(body_complete=True)[0] is Outcome.TOKENLESS
    assert "counted 128" in counted.outcome(body_complete=True)[1]
    assert "--temperature" in counted.outcome(body_complete=True)[1]
    assert "--temperature" not in nothing.outcome(body_complete=True)[1]


def test_cached_tokens_are_read() -> None:
    """The hit rate is reported, so that a benchmark cannot hide behind a warm cache."""
    timer = timed((1.0, CHAT.usage(800, 3, 768)))

    assert (timer.prompt_tokens, timer.output_tokens, timer.cached_tokens) == (800, 3, 768)


def test_a_delta_of_null_does_not_break_the_measurement() -> None:
    """Odd but valid JSON is read on."""
    event = b"data: " + json.dumps({"choices": [{"index": 0, "delta": None}]}).encode() + b"\n\n"

    assert timed((1.0, event)).token_events == 0


def test_the_visible_text_is_kept_for_the_next_turn() -> None:
    """Of the first choice, without reasoning; characters that were cut between two reads are whole."""
    raw = CHAT.reasoning("hm") + CHAT.content("안녕 ") + CHAT.content("other", index=1) + CHAT.content("😀")
    timer, splitter = StreamTimer(), EventSplitter()
    for byte in raw:
        for data in splitter.feed(bytes([byte])):
            timer.event(0.0, data)

    assert timer.text == "안녕 😀"
    assert timer.token_events == 4


def test_unusual_values_are_no_errors_where_only_presence_counts() -> None:
    """Content parts, numbers, an error of null; but a choice that is no object is malformed."""
    odd = b'data: {"error":null,"choices":[{"delta":{"content":[{"type":"text","text":"x"}],"tool_calls":7}}]}\n\n'

    assert timed((1.0, odd)).token_events == 1
    assert timed((1.0, b'data: {"choices":[1]}\n\n'), (1.0, frames.DONE)).outcome(body_complete=True)[0] is (
        Outcome.MALFORMED
    )
