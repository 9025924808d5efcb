"""What the stream observer learns from a chat or completions stream, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.observer import Ending, StreamObserver
from gateway.types import Family
from tests.protocol.observed import DONE, LAST, ROLE, TOKEN, USAGE, chunk, event, observe, pieces


@given(
    st.data(),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["", " "]),
    st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_c09_c10_everything_is_learnt_whatever_the_framing(
    data: st.DataObject, end: str, space: str, compact: bool
) -> None:
    """Line ends, spacing and cuts change nothing of tokens, usage, finish reasons and verdict."""
    payloads = [ROLE, TOKEN, chunk(content="안녕 😀\u2028"), LAST, USAGE, "[DONE]"]
    text = b": hello\n\n" + b"".join(event(payload, end=end, space=space, compact=compact) for payload in payloads)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    observer = StreamObserver(Family.CHAT)

    found = [observer.feed(text[start:stop]) for start, stop in zip([0, *places], [*places, len(text)], strict=True)]

    assert 2 == sum(found) == observer.token_events
    assert (6, True, {0: "length"}, 0) == (
        observer.events,
        observer.done,
        observer.finish_reasons,
        observer.malformed,
    )
    assert (22, 16, 3) == (observer.prompt_tokens, observer.cached_tokens, observer.output_tokens)
    assert Ending.COMPLETE is observer.verdict().ending


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"content": "a"}, 1),
        ({"content": ""}, 0),
        ({"content": None}, 0),
        ({"role": "assistant"}, 0),
        ({"reasoning": "a"}, 1),
        ({"reasoning_content": "a", "content": None}, 1),
        ({"refusal": "a"}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "t"}}]}, 1),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, 0),
        ({"tool_calls": [{"index": 0}]}, 0),
        ({"tool_calls": []}, 0),
        ({"content": [{"type": "text", "text": "a"}]}, 1),
        ({"content": []}, 0),
        ({"content": '"error":{"usage":{}} data: [DONE] \n\n'}, 1),
    ],
)
def test_a_token_is_content_reasoning_or_tool_call_text(delta: dict[str, object], expected: int) -> None:
    """And nothing else: role and empty chunks are no tokens; text about markers is text."""
    observer = StreamObserver(Family.CHAT)

    assert expected == observer.feed(event(chunk(**delta)))
    assert (None, False, {}, 0) == (observer.error, observer.done, observer.finish_reasons, observer.malformed)


def test_completions_tokens_are_non_empty_text() -> None:
    """The completions shape has no delta."""
    observer = StreamObserver(Family.COMPLETIONS)

    assert 1 == observer.feed(event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}))
    assert 0 == observer.feed(event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}))
    assert {0: "stop"} == observer.finish_reasons


def test_several_events_in_one_read_are_counted_each() -> None:
    """TCP reads are not events."""
    observer = StreamObserver(Family.CHAT)

    assert 3 == observer.feed(event(ROLE) + event(TOKEN) * 3 + event(LAST))
    assert 5 == observer.events


@given(
    st.lists(
        st.sampled_from(
            [
                event(ROLE),
                event(TOKEN),
                event(LAST),
                event(USAGE),
                DONE,
                b"data:  [DONE] \n\n",
                b"data: \n\n",
                b"data: {\ndata: }\n\n",
                b"data: {\n\n",
                b": comment\n\n",
                b"\n\n",
                b"data:" + event(TOKEN)[6:],
                event('{"choices":[],"usage":{"prompt_tokens":NaN,"completion_tokens":7}}'),
                event('{"choices":[],"error":{"message":"\\ud800"}}'),
                event('{"choices":[],"usage":{"prompt_tokens":3},"object":"error","message":"m"}'),
            ]
        ),
        max_size=7,
    ),
    st.sampled_from([Family.CHAT, Family.COMPLETIONS, Family.RESPONSES, Family.MESSAGES]),
)
@settings(deadline=None)
def test_a_read_of_many_events_is_read_as_they_are_one_by_one(events: list[bytes], family: Family) -> None:
    """Whole events of one line each, as at the end of a stream, go past the splitter: it would find the same."""
    text = b"".join(events)

    together, apart = observe(text, family=family), observe(*pieces(text, 1), family=family)

    learnt = [
        (
            *(one.events, one.token_events, one.done, one.error, one.finish_reasons, one.malformed, one.next_sequence),
            *(one.prompt_tokens, one.cached_tokens, one.output_tokens),
        )
        for one in (together, apart)
    ]
    assert learnt[0] == learnt[1]
    assert together.at_boundary == apart.at_boundary


@pytest.mark.parametrize("said", ['"error"', '"err\\u006fr"'])
def test_an_error_beside_usage_is_an_error_however_it_is_spelt(said: str) -> None:
    """The usage event is read by what is in it that matters, but never past an error."""
    observer = observe(event(f'{{"object":{said},"message":"m","choices":[],"usage":{{"prompt_tokens":3}}}}'))

    assert observer.error is not None
    assert (502, 3) == (observer.error.status, observer.prompt_tokens)


def test_comments_are_no_events_and_boundaries_are_known() -> None:
    """A comment may be put where no event is half received."""
    observer = StreamObserver(Family.CHAT)

    assert observer.at_boundary
    assert 0 == observer.feed(b": keep-alive\n\n")
    assert observer.at_boundary
    observer.feed(event(TOKEN)[:20])
    assert not observer.at_boundary
    observer.feed(event(TOKEN)[20:])
    assert observer.at_boundary
    assert (1, 1) == (observer.events, observer.token_events)


def test_continuous_usage_ends_with_the_greatest_count() -> None:
    """vLLM repeats usage in every chunk when asked."""
    pieces = [event(chunk(content="a") | {"usage": {"prompt_tokens": 5, "completion_tokens": k}}) for k in range(4)]

    observer = observe(*pieces)

    assert (5, None, 3, 4) == (
        observer.prompt_tokens,
        observer.cached_tokens,
        observer.output_tokens,
        observer.token_events,
    )


@pytest.mark.parametrize(
    "usage", [None, [], "x", {"prompt_tokens": "5"}, {"prompt_tokens": True}, {"prompt_tokens": -1}]
)
def test_usage_that_is_none_is_no_usage(usage: object) -> None:
    """`"usage": null` in every chunk is common."""
    assert observe(event(chunk(content="a") | {"usage": usage})).prompt_tokens is None


def test_c59_usage_without_choices_is_read() -> None:
    """Some workers leave `choices` out of the usage event."""
    assert 3 == observe(event({"usage": USAGE["usage"]})).output_tokens


def test_a_transcription_stream_is_read_like_a_chat() -> None:
    """Audio has the grammar of chat chunks under a family without a special one."""
    observer = observe(
        event({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}), DONE, family=Family.PLAIN
    )

    assert (1, Ending.COMPLETE) == (observer.token_events, observer.verdict().ending)
