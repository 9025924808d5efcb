"""Frames equal what vLLM 0.32 was recorded to send, byte for byte."""

from __future__ import annotations

import json

import pytest

from loadtest.servers import frames
from loadtest.servers.message_frames import MessagesStream, ResponsesStream

CHAT = frames.ChatStream(model="tiny", id="chatcmpl-9e35", created=1795969546)
HEAD = '"id":"chatcmpl-9e35","object":"chat.completion.chunk","created":1795969546,"model":"tiny"'


@pytest.mark.parametrize(
    ("expected", "frame"),
    [
        (
            "data: {" + HEAD + ',"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            '"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n',
            CHAT.role(),
        ),
        (
            "data: {" + HEAD + ',"choices":[{"index":0,"delta":{"content":"Z"},"logprobs":null,'
            '"finish_reason":null,"token_ids":null}]}\n\n',
            CHAT.content("Z"),
        ),
        (
            "data: {" + HEAD + ',"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length",'
            '"stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.32.0-799dd689"}\n\n',
            CHAT.finish("length"),
        ),
        (
            "data: {" + HEAD + ',"choices":[],"usage":{"prompt_tokens":22,"total_tokens":25,"completion_tokens":3},'
            '"system_fingerprint":"vllm-0.32.0-799dd689"}\n\n',
            CHAT.usage(22, 3),
        ),
        ("data: [DONE]\n\n", frames.DONE),
        (": keep-alive\n\n", frames.KEEP_ALIVE),
        (
            'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root '
            'cause.", "type": "InternalServerError", "param": null, "code": 500}}\n\n',
            frames.error_event(),
        ),
    ],
    ids=["role", "content", "finish", "usage", "done", "keep-alive", "in-band-error"],
)
def test_a_frame_equals_the_recorded_bytes(expected: str, frame: bytes) -> None:
    """LF only, compact JSON in chunks, json.dumps spaces in errors."""
    assert frame == expected.encode()


def test_text_is_sent_as_utf8_unescaped() -> None:
    """As pydantic writes it; an escaped form would change the bytes a relay passes on."""
    assert '"content":"안녕 😀"'.encode() in CHAT.content("안녕 😀")


@pytest.mark.parametrize("text", ["a", "", '"quoted"\n', "안녕 😀"])
def test_a_frame_put_around_a_text_equals_the_frame_built_with_it(text: str) -> None:
    """The simulator's short cut changes no byte."""
    before, after = CHAT.content_around(1)

    assert CHAT.content(text, 1) == before + frames.compact(text) + after


def test_cached_tokens_appear_only_when_told() -> None:
    """prompt_tokens_details is bound to --enable-prompt-tokens-details."""
    assert b"prompt_tokens_details" not in CHAT.usage(22, 3)
    assert b'"prompt_tokens_details":{"cached_tokens":768,"created_cache_tokens":0}' in CHAT.usage(800, 3, 768)


def test_a_whole_chat_answer_has_role_tokens_finish_usage_done() -> None:
    """k tokens make k + 4 events with usage and k + 3 without."""
    with_usage, without = CHAT.events(["a", "b"]), CHAT.events(["a", "b"], usage=False)

    assert len(with_usage) == 6
    assert len(without) == 5
    assert with_usage[0] == CHAT.role()
    assert with_usage[-1] == without[-1] == frames.DONE


def test_messages_events_are_named_and_in_order() -> None:
    """Data-only events would be dropped silently by Anthropic's SDK."""
    lines = b"".join(MessagesStream().events(["x"])).decode().splitlines()

    assert [line.removeprefix("event: ") for line in lines if line.startswith("event: ")] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_responses_events_are_numbered_without_a_hole() -> None:
    """The SDK's accumulator wants response.created first and the terminal event last."""
    events = [json.loads(e.split(b"data: ", 1)[1]) for e in ResponsesStream().events(["x", "y"])]

    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "xy"
