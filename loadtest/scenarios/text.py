"""
Synthetic text whose length is known in tokens of the served model, without a tokenizer in the load loop.

What a model makes of the words is measured once before the run (see `calibration`) and kept in a `TokenScale`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadtest.scenarios.words import WORDS

PARAGRAPH_WORDS = 64
_PARAGRAPHS = 256
SALT_WORDS = 6
"""Six of 200 words and more: over 45 bits, so that a million sessions share no beginning."""

ScaleSource = Literal["tokenize", "usage", "assumed"]


@dataclass(frozen=True, slots=True)
class TokenScale:
    """
    How words become tokens in the served model. `words` are those to use; `tokens_per_word` is exactly 1 where the
    target's `/tokenize` says that each is one token, otherwise a mean.

    `chat_tokens` is what the chat template adds to one user message, `system_tokens` what it adds more when a system
    message stands before it, `turn_tokens` what a further assistant and user message add; `plain_tokens` are
    the special tokens around a prompt without a template.
    """

    words: tuple[str, ...] = WORDS
    tokens_per_word: float = 1.0
    chat_tokens: int = 8
    system_tokens: int = 4
    turn_tokens: int = 8
    plain_tokens: int = 0
    source: ScaleSource = "assumed"
    _paragraphs: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A prompt of 32,000 tokens must not hold up the loop that times the streams: it is put together from ready
        # paragraphs. Equal paragraphs are harmless, since what stands before them differs.
        rng = random.Random("paragraphs")
        pool = tuple(" ".join(rng.choices(self.words, k=PARAGRAPH_WORDS)) for _ in range(_PARAGRAPHS))
        object.__setattr__(self, "_paragraphs", pool)

    def words_for(self, tokens: int) -> int:
        """How many words come nearest to that many tokens; at least one."""
        return max(1, round(tokens / self.tokens_per_word))

    def text(self, rng: random.Random, tokens: int, *, before: str = "") -> str:
        """Text of so many tokens. `before` begins it and is part of the length."""
        left = self.words_for(tokens) - before.count(" ") - bool(before)
        paragraphs, rest = divmod(max(0, left), PARAGRAPH_WORDS)
        pieces = [before] if before else []
        if rest:
            pieces.append(" ".join(rng.choices(self.words, k=rest)))
        pieces += rng.choices(self._paragraphs, k=paragraphs)
        return " ".join(pieces)

    def salt(self, rng: random.Random, run_salt: str) -> str:
        """Words for the very beginning of a prompt that must share none with any other, in this run or another."""
        return " ".join(random.Random(f"{run_salt}:{rng.getrandbits(64)}").choices(self.words, k=SALT_WORDS))

    def tokens_of(self, text: str) -> int:
        """About how many tokens text of another origin has: English has some 4 characters to a token."""
        return max(1, round(len(text) / 4))

    def prompt_tokens(self, texts: Sequence[int], *, system: bool = False) -> int:
        """Tokens of a whole chat prompt whose messages have these many each, template included."""
        turns = (len(texts) - system - 1) / 2
        return sum(texts) + self.chat_tokens + system * self.system_tokens + round(turns * self.turn_tokens)
