"""
What the simulated model says: deterministic text from the prompt, and a token count that needs no vocabulary.

A token is four bytes of UTF-8 in prompts and one word in answers. That is crude and stable: the same prompt has the
same count everywhere (usage, /tokenize, metrics).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TOKEN_BYTES = 4
TEMPLATE_TOKENS = 5
"""Tokens a chat template adds per message."""

_WORDS = (
    *("the", "model", "answers", "with", "words", "that", "follow", "from", "its", "prompt", "and", "nothing", "else"),
    *("while", "every", "request", "keeps", "an", "order", "of", "own", "so", "a", "reader", "sees", "at", "once"),
    *("whether", "two", "streams", "were", "mixed"),
)
_PARIS = "The capital of France is Paris."


def count_tokens(text: str) -> int:
    """Tokens of a piece of prompt text."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // TOKEN_BYTES)


def token_ids(text: str) -> list[int]:
    """One stable id per token."""
    data = text.encode("utf-8", "surrogatepass")
    return [zlib.crc32(data[i : i + TOKEN_BYTES]) % 50_000 for i in range(0, len(data), TOKEN_BYTES)]


def message_text(message: Mapping[str, Any]) -> str:
    """The text of one chat message; parts that are no text count as an empty string."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


def render_chat(messages: Iterable[Mapping[str, Any]]) -> tuple[str, int]:
    """The prompt text of a chat (for prefix matching and the answer) and its token count."""
    parts, tokens = [], 3
    for message in messages:
        text = message_text(message)
        parts.append(f"<{message.get('role', 'user')}>{text}\n")
        tokens += count_tokens(text) + TEMPLATE_TOKENS
    return "".join(parts), tokens


class Answer:
    """
    The tokens the model would say to a prompt, by position; it would stop by itself after `length` words.

    With `ignore_eos` it goes on for ever, repeating the words.
    """

    def __init__(self, prompt: str, choice: int = 0) -> None:
        seed = zlib.crc32(prompt[-4096:].encode("utf-8", "surrogatepass")) + choice * 7919
        if "capital of france" in prompt.lower():
            self._words: Sequence[str] = _PARIS.split()
            self.length = len(self._words)
            self._offset = 0
        else:
            self._words = _WORDS
            self.length = 16 + seed % 112
            self._offset = seed % len(_WORDS)

    def token(self, position: int) -> str:
        """The text of the token at a position, with its leading space."""
        word = self._words[(self._offset + position) % len(self._words)]
        return word if position == 0 else " " + word

    def text(self, count: int) -> str:
        """The first `count` tokens joined."""
        return "".join(self.token(i) for i in range(min(count, self.length)))
