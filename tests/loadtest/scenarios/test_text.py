"""Synthetic text: as long as asked, unlike any other where it must be."""

from __future__ import annotations

import random
import time

from loadtest.scenarios.text import SALT_WORDS, TokenScale
from loadtest.scenarios.words import WORDS

SCALE = TokenScale()


def test_text_has_as_many_words_as_tokens_were_asked_for() -> None:
    """What begins it counts; where a word is one token and a half, there are fewer words."""
    rng = random.Random(1)
    coarse = TokenScale(tokens_per_word=1.5)

    for tokens in (6, 7, 63, 64, 65, 1000):
        assert tokens == len(SCALE.text(rng, tokens, before=SCALE.salt(rng, "")).split())
        assert round(tokens / 1.5) == len(coarse.text(rng, tokens).split())
    assert SALT_WORDS == len(SCALE.text(rng, 1, before=SCALE.salt(rng, "")).split()), "the salt is never cut"


def test_salts_differ_between_sessions_and_runs() -> None:
    """The same source with another run's salt gives other words."""
    salts = [SCALE.salt(random.Random(n), run) for n in range(500) for run in ("a", "b")]

    assert 1000 == len(set(salts))


def test_the_words_are_distinct_and_the_short_ones_come_first() -> None:
    """Three letters first: the simulator counts four bytes as a token."""
    assert len(WORDS) == len(set(WORDS))
    assert list(WORDS) == sorted(WORDS, key=len)
    assert 100 < sum(len(word) == 3 for word in WORDS)


def test_a_long_prompt_costs_the_sending_loop_next_to_nothing() -> None:
    """32,000 tokens in well under the time of one event loop stall that would be noticed (5 ms each)."""
    rng = random.Random(1)
    began = time.process_time()
    for _ in range(100):
        SCALE.text(rng, 32_000)

    assert time.process_time() - began < 0.5
