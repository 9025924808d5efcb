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
    assert timer.gaps == [pytest.approx(0.05)]
    assert timer.outcome(body_complete=True) == (Outcome.OK, "")


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


def test_tpot_counts_tokens_from_usage_and_not_events() -> None:
    """Nine tokens after the first in two events and 0.9 s are 100 ms each."""
    timer = timed(
        (1.0, CHAT.content("a")), (1.5, CHAT.content("bcd")), (1.9, CHAT.content("e")), (2.0, CHAT.usage(5, 10))
    )

    assert timer.time_per_output_token == pytest.approx(0.1)


def test_tpot_leaves_out_the_tokens_of_the_first_event() -> None:
    """Continuous usage tells that four tokens came at once."""
    first = CHAT.content("abcd", usage=frames.usage_info(5, 4))
    timer = timed((1.0, first), (2.0, CHAT.content("e", usage=frames.usage_info(5, 14))))

    assert timer.time_per_output_token == pytest.approx(0.1)


@pytest.mark.parametrize("tokens", [None, 0, 1])
def test_tpot_is_unknown_without_usage_or_with_a_single_token(tokens: int | None) -> None:
    """Rather than a division that means nothing."""
    usage = [] if tokens is None else [(1.2, CHAT.usage(5, tokens))]

    assert timed((1.0, CHAT.content("a")), (1.1, CHAT.content("b")), *usage).time_per_output_token is None


def test_events_of_one_read_share_its_time() -> None:
    """A gap of zero is what the user got."""
    assert timed((1.0, CHAT.content("a") + CHAT.content("b"))).gaps == [0.0]


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


def test_cached_tokens_are_read() -> None:
    """The hit rate is reported, so that a benchmark cannot hide behind a warm cache."""
    timer = timed((1.0, CHAT.usage(800, 3, 768)))

    assert (timer.prompt_tokens, timer.output_tokens, timer.cached_tokens) == (800, 3, 768)


def test_a_delta_of_null_does_not_break_the_measurement() -> None:
    """Odd but valid JSON is read on."""
    event = b"data: " + json.dumps({"choices": [{"index": 0, "delta": None}]}).encode() + b"\n\n"

    assert timed((1.0, event)).token_events == 0
