"""The stream observer: what it learns from a stream, however the bytes arrive, and how it judges the end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.observer import Ending, StreamObserver
from gateway.types import Family

DONE = b"data: [DONE]\n\n"


def event(payload: object, name: str = "", end: str = "\n", space: str = " ", compact: bool = True) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":") if compact else None)
    head = f"event:{space}{name}{end}" if name else ""
    return f"{head}data:{space}{text}{end}{end}".encode()


def chunk(index: int = 0, finish: str | None = None, **delta: object) -> dict[str, object]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }


ROLE, TOKEN, LAST = chunk(role="assistant", content=""), chunk(content="Z"), chunk(content="", finish="length")
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 22, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}},
}


def observe(*pieces: bytes, family: Family = Family.CHAT, n: int = 1) -> StreamObserver:
    observer = StreamObserver(family, n)
    for piece in pieces:
        observer.feed(piece)
    return observer


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


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "function_call"])
def test_c56_every_finish_reason_is_an_end(reason: str) -> None:
    """With vLLM's extra field beside it."""
    last = chunk(finish=reason)
    observer = observe(event(TOKEN), event(last), DONE)

    assert (Ending.COMPLETE, {0: reason}) == (observer.verdict().ending, observer.finish_reasons)


def test_c56_an_abort_is_a_failure() -> None:
    """vLLM ends a request like that when it is stopped itself."""
    verdict = observe(event(TOKEN), event(chunk(finish="abort")), DONE).verdict()

    assert Ending.ABORTED is verdict.ending


@pytest.mark.parametrize("pieces", [(), (event(ROLE),), (event(ROLE), event(TOKEN))])
@pytest.mark.parametrize("clean_end", [True, False])
def test_c01_c05_a_stream_without_finish_is_incomplete(pieces: tuple[bytes, ...], clean_end: bool) -> None:
    """Cut after the headers, after the role chunk, in the middle; by reset or by a clean end."""
    assert Ending.INCOMPLETE is observe(*pieces).verdict(clean_end=clean_end).ending


def test_c05_a_finished_answer_without_done_is_complete_iff_the_end_is_clean() -> None:
    """Pinned: all choices finished and a clean end is an answer; a broken connection before [DONE] is a failure."""
    observer = observe(event(TOKEN), event(LAST))

    assert Ending.COMPLETE is observer.verdict(clean_end=True).ending
    assert Ending.INCOMPLETE is observer.verdict(clean_end=False).ending


def test_c07_done_alone_is_no_answer() -> None:
    """A worker that fails before its first token may still say [DONE]."""
    observer = observe(DONE)

    assert (True, Ending.INCOMPLETE) == (observer.done, observer.verdict().ending)


def test_nothing_after_done_is_looked_at() -> None:
    """Clients stop reading there, too."""
    observer = observe(event(LAST), DONE, event(TOKEN), event({"error": {"message": "x"}}))

    assert (0, None, 2) == (observer.token_events, observer.error, observer.events)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_c55_all_choices_must_finish(order: tuple[int, ...]) -> None:
    """n=3, interleaved in any order; two of three are not enough even with [DONE]."""
    tokens = [event(chunk(index, content="a")) for index in order]
    ends = [event(chunk(index, finish="stop")) for index in order]

    assert Ending.COMPLETE is observe(*tokens, *ends, DONE, n=3).verdict().ending
    assert Ending.INCOMPLETE is observe(*tokens, *ends[:2], DONE, n=3).verdict().ending


@pytest.mark.parametrize(
    ("payload", "status", "code", "told"),
    [
        ({"error": {"message": "queue full", "type": "x", "code": 503}}, 503, "503", True),
        ({"error": {"message": "m", "type": "InternalServerError", "param": None, "code": 500}}, 500, "500", True),
        ({"error": {"message": "m", "type": "invalid_request_error", "code": "bad"}}, 400, "bad", True),
        ({"error": {"message": "m", "code": "429"}}, 429, "429", True),
        ({"error": {"message": "m"}, "choices": []}, 502, None, True),
        ({"error": "text"}, 502, None, False),
        ({"error": {}}, 502, None, False),
        ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, 400, "400", False),
    ],
)
@pytest.mark.parametrize("compact", [True, False])
def test_c06_an_in_band_error_is_found_in_every_shape(
    payload: dict[str, object], status: int, code: str | None, told: bool, compact: bool
) -> None:
    """As first event or later; [DONE] after it makes nothing good again."""
    observer = observe(event(payload, compact=compact), DONE)
    late = observe(event(TOKEN), event(payload, name="error"), DONE)

    assert observer.error is not None
    assert (status, code, told) == (observer.error.status, observer.error.code, observer.error.told)
    assert observer.error.message
    assert Ending.ERROR is observer.verdict().ending
    assert observer.verdict().error is observer.error
    assert (Ending.ERROR, 1) == (late.verdict().ending, late.token_events)


def test_a_null_error_is_none() -> None:
    """Some servers put it in every chunk."""
    observer = observe(event(TOKEN | {"error": None}), event(LAST), DONE)

    assert (1, Ending.COMPLETE) == (observer.token_events, observer.verdict().ending)


def test_the_first_error_is_kept() -> None:
    """What follows is its consequence."""
    observer = observe(event({"error": {"message": "first"}}), event({"error": {"message": "second"}}))

    assert observer.error is not None
    assert "first" == observer.error.message


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


def pieces(text: bytes, size: int = 65_536) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def test_an_oversized_event_counts_as_a_token_event_only_where_it_can_be_one() -> None:
    """So large an event of a chat stream carries output; after the end nothing counts."""
    huge = pieces(event(chunk(content="x" * 300_000)))

    assert 1 == observe(*huge).token_events
    assert (0, 2) == (observe(event(LAST), DONE, *huge).token_events, observe(event(LAST), DONE, *huge).events)
    for name, expected in (("response.output_text.delta", 1), ("response.output_text.done", 0)):
        odd = pieces(event({"x": "x" * 5_000_000}, name=name))
        assert expected == observe(*odd, family=Family.RESPONSES).token_events


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


def test_a_transcription_stream_is_read_like_a_chat() -> None:
    """Audio has the grammar of chat chunks under a family without a special one."""
    observer = observe(
        event({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}), DONE, family=Family.PLAIN
    )

    assert (1, Ending.COMPLETE) == (observer.token_events, observer.verdict().ending)


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
