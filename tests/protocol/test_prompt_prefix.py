"""The canonical beginning of a prompt: independent of spelling, bounded, and a true prefix."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.members import decode_members
from gateway.protocol.prompt_prefix import PREFIX_BYTES, prompt_prefix
from gateway.types import Family

TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from('\ud83d\ude00"\\\n'), max_size=30)


def prefix(
    family: Family, document: object, *, ascii_only: bool = True, indent: int | None = None, bound: int = PREFIX_BYTES
) -> bytes:
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    return prompt_prefix(family, decode_members(body), bound)


@pytest.mark.parametrize(
    ("family", "document", "expected"),
    [
        (
            Family.CHAT,
            {"messages": [{"role": "system", "content": "a"}, {"content": "é", "role": "user"}]},
            "system\x1fa\x1euser\x1fé\x1e",
        ),
        (
            Family.CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\n"}, {"text": "b"}]}]},
            "user\x1fa\nb\x1e",
        ),
        (Family.CHAT, {"messages": [{"role": "assistant", "content": None}, {}]}, "assistant\x1f\x1e\x1f\x1e"),
        (Family.MESSAGES, {"system": [{"type": "text", "text": "s"}], "messages": []}, "system\x1fs\x1e"),
        (Family.RESPONSES, {"instructions": "s", "input": "hi"}, "system\x1fs\x1euser\x1fhi\x1e"),
        (Family.RESPONSES, {"input": [{"role": "user", "content": "hi"}]}, "user\x1fhi\x1e"),
        (Family.COMPLETIONS, {"prompt": "Once \"upon\""}, "Once \"upon\""),
        (Family.COMPLETIONS, {"prompt": ["Once", "twice"]}, "Oncetwice"),
        (Family.COMPLETIONS, {"prompt": [1, 2, 3]}, "[1,2,3]"),
        (Family.COMPLETIONS, {"prompt": [[1, 2], [3]]}, "[[1,2],[3]]"),
        (Family.PLAIN, {"input": "x"}, ""),
        (Family.CHAT, {}, ""),
        (Family.CHAT, {"messages": [1]}, ""),
        (Family.COMPLETIONS, {"prompt": None}, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_prefix_is_role_and_text_in_order(
    family: Family, document: object, expected: str, ascii_only: bool
) -> None:
    """Whatever the spelling: escapes, white space, member order."""
    assert expected.encode() == prefix(family, document, ascii_only=ascii_only)
    assert expected.encode() == prefix(family, document, ascii_only=ascii_only, indent=1)


def test_an_image_counts_with_its_bytes() -> None:
    """Two prompts that differ in an image only are different prompts."""
    one, two = (
        prefix(
            Family.CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
        )
        for url in ("data:a", "data:b")
    )

    assert one != two


@given(st.lists(TEXT, max_size=5), TEXT, st.integers(1, 80))
@settings(deadline=None, max_examples=100)
def test_a_smaller_bound_gives_a_prefix_of_the_same_bytes(turns: list[str], more: str, bound: int) -> None:
    """Cut inside escapes and characters, too; a conversation that goes on keeps its beginning."""
    messages = [{"role": "user", "content": text} for text in turns]
    whole = prefix(Family.CHAT, {"messages": messages})

    cut = prefix(Family.CHAT, {"messages": messages}, bound=bound)
    longer = prefix(Family.CHAT, {"messages": [*messages, {"role": "assistant", "content": more}]})

    assert whole[:bound] == cut
    assert longer.startswith(whole)


@given(TEXT)
@settings(deadline=None, max_examples=100)
def test_the_text_of_a_prompt_is_its_utf8(text: str) -> None:
    """Lone surrogates included, in the only encoding there is for them."""
    assert text.encode("utf-8", "surrogatepass")[:20] == prefix(Family.COMPLETIONS, {"prompt": text}, bound=20)


def test_the_parts_of_one_message_are_bounded_together() -> None:
    """What follows a full prefix is not even looked at."""
    parts = [{"type": "text", "text": "abcdef"}] * 3

    assert b"user\x1fabcdefab" == prefix(Family.CHAT, {"messages": [{"role": "user", "content": parts}]}, bound=13)
    assert b"abcdefa" == prefix(Family.COMPLETIONS, {"prompt": ["abcdef", "a", "b", "c"]}, bound=7)
