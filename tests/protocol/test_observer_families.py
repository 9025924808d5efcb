"""The stream observer on OpenAI's Responses and Anthropic's Messages, each with a grammar of its own."""

from __future__ import annotations

import pytest

from gateway.protocol.observer import Ending
from gateway.types import Family
from tests.protocol.observed import DONE, event, observe, pieces


def responses(kind: str, number: int, **fields: object) -> bytes:
    return event({"type": kind, "sequence_number": number} | fields, name=kind)


RESPONSE = {
    "status": "completed",
    "usage": {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 7},
}

OPENING = (
    responses("response.created", 0, response={"status": "in_progress"}),
    responses("response.output_item.added", 1, item={}),
    responses("response.output_text.delta", 2, delta="a"),
    responses("response.reasoning_text.delta", 3, delta="b"),
    responses("response.output_text.delta", 4, delta=""),
)


def test_c85_a_responses_stream_is_complete_with_its_own_terminal_event() -> None:
    """Deltas are tokens; usage comes with the end; the next sequence number is known."""
    observer = observe(*OPENING, responses("response.completed", 5, response=RESPONSE), family=Family.RESPONSES)

    assert (2, 6, True, 6) == (observer.token_events, observer.events, observer.done, observer.next_sequence)
    assert (5, 2, 7) == (observer.prompt_tokens, observer.cached_tokens, observer.output_tokens)
    assert Ending.COMPLETE is observer.verdict().ending


@pytest.mark.parametrize("clean_end", [True, False])
def test_c86_a_responses_stream_without_terminal_event_is_incomplete(clean_end: bool) -> None:
    """And an event of ours would carry the next number."""
    observer = observe(*OPENING, family=Family.RESPONSES)

    assert Ending.INCOMPLETE is observer.verdict(clean_end=clean_end).ending
    assert 5 == observer.next_sequence


def test_responses_may_end_incomplete_failed_cancelled_or_with_an_error() -> None:
    """Incomplete is an answer cut by its limit; failed and error are failures; cancelled is an abort."""
    ends = {
        Ending.COMPLETE: responses("response.incomplete", 5, response={"incomplete_details": {"reason": "max"}}),
        Ending.ERROR: responses("response.failed", 5, response={"error": {"code": "server_error", "message": "m"}}),
        Ending.ABORTED: responses("response.completed", 5, response={"status": "cancelled"}),
    }
    for ending, end in ends.items():
        assert ending is observe(*OPENING, end, family=Family.RESPONSES).verdict().ending
    for end in (
        responses("response.failed", 5),
        responses("error", 5, message="m", code="server_error"),
        event({"error": {"message": "m", "code": 503}}),
    ):
        assert Ending.ERROR is observe(*OPENING, end, family=Family.RESPONSES).verdict().ending


def test_responses_events_of_odd_types_are_read_leniently() -> None:
    """NaN in a delta event, a sequence number that is a text, no object at all."""
    observer = observe(
        event('{"type":"response.output_text.delta","delta":"a","logprobs":[NaN]}'),
        event('{"type":"response.completed","sequence_number":"x","response":{"usage":{"output_tokens":3}}}'),
        family=Family.RESPONSES,
    )

    assert (1, 3, True) == (observer.token_events, observer.output_tokens, observer.done)
    assert 1 == observe(event("null"), event("[DONE]"), family=Family.RESPONSES).malformed


def test_a_huge_final_responses_event_is_still_the_end() -> None:
    """It repeats the whole answer. Up to the cap its usage is read; beyond, its name is enough."""
    big = {"type": "response.completed", "response": RESPONSE | {"text": "x" * 1_000_000}}
    huge = {"type": "response.completed", "response": {"text": "x" * 5_000_000} | RESPONSE}
    read, named = (
        observe(*OPENING, *pieces(event(payload, name="response.completed")), family=Family.RESPONSES)
        for payload in (big, huge)
    )

    assert (7, Ending.COMPLETE) == (read.output_tokens, read.verdict().ending)
    assert (None, Ending.COMPLETE) == (named.output_tokens, named.verdict().ending)


def message(kind: str, **fields: object) -> bytes:
    return event({"type": kind} | fields, name=kind)


MESSAGE = (
    message("message_start", message={"usage": {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 0}}),
    message("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    message("ping"),
    message("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
    message("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": "{"}),
    message("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "h"}),
    message("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "s"}),
    message("content_block_delta", index=0, delta={"type": "text_delta", "text": ""}),
    message("content_block_stop", index=0),
    message("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 12}),
)


def test_c04_a_messages_stream_ends_with_message_stop() -> None:
    """Text, tool input and thinking are tokens; usage comes in two places."""
    observer = observe(*MESSAGE, message("message_stop"), DONE, family=Family.MESSAGES)

    assert (3, True, {0: "end_turn"}) == (observer.token_events, observer.done, observer.finish_reasons)
    assert (9, 4, 12) == (observer.prompt_tokens, observer.cached_tokens, observer.output_tokens)
    assert Ending.COMPLETE is observer.verdict().ending
    assert Ending.INCOMPLETE is observe(*MESSAGE, family=Family.MESSAGES).verdict().ending


def test_c04_an_error_event_of_a_messages_stream_is_a_failure() -> None:
    """Anthropic's envelope names the status by its type."""
    verdict = observe(
        *MESSAGE, message("error", error={"type": "overloaded_error", "message": "m"}), family=Family.MESSAGES
    ).verdict()

    assert verdict.error is not None
    assert (Ending.ERROR, 503, True) == (verdict.ending, verdict.error.status, verdict.error.told)


def test_messages_events_of_odd_types_are_read_leniently() -> None:
    """What the typed decoder refuses is read field by field."""
    observer = observe(
        event('{"type":"content_block_delta","delta":{"text":["x"]}}'),
        event('{"type":"message_delta","delta":{"stop_reason":5},"usage":{"output_tokens":2}}'),
        event('{"type":"message_stop","x":NaN}'),
        event("null"),
        family=Family.MESSAGES,
    )

    assert (1, 2, True, {}) == (observer.token_events, observer.output_tokens, observer.done, observer.finish_reasons)
    assert 1 == observe(event("null"), family=Family.MESSAGES).malformed


def test_an_unknown_messages_event_is_nothing() -> None:
    """New kinds of events are handed to the user by the SDKs; here they are neither tokens nor errors."""
    observer = observe(message("new_kind", x=1), family=Family.MESSAGES)

    assert (1, 0, None, 0) == (observer.events, observer.token_events, observer.error, observer.malformed)


def test_an_absurd_number_makes_an_event_unreadable_and_no_more() -> None:
    """Python refuses integers of thousands of digits."""
    observer = observe(
        event('{"type":"message_delta","x":' + "1" * 5000 + "}"),
        message("message_stop"),
        family=Family.MESSAGES,
    )

    assert (1, Ending.COMPLETE) == (observer.malformed, observer.verdict().ending)
