"""Prompts in plain English, so that greedy answers are confident ones; lengths are as uneven as in use. Pure."""

from __future__ import annotations

import random

_SUBJECTS = (
    "how bread rises",
    "why the sea has tides",
    "how a bicycle stays upright",
    "what a lighthouse is for",
    "how paper is made",
    "why leaves turn red in autumn",
    "how a clock keeps time",
    "what makes a good map",
    "how bridges carry their load",
    "why glass is clear",
    "how a railway signal works",
    "what honey is made of",
)
_ASKS = (
    "Explain {}.",
    "Describe {} to a child of ten.",
    "Write a short paragraph about {}.",
    "Summarise {} in points.",
)
_CONTEXTS = (
    "I am preparing a lesson for a class of beginners, and I would like them to remember the main idea.",
    "The text will be printed in a small booklet that visitors of a museum take home with them.",
    "My readers know little about the subject, but they are curious and like a clear example.",
    "Please avoid difficult words, and do not use any formula or table in your answer.",
    "A friend asked me about this yesterday evening and I could not give a good answer.",
    "It should be easy to read aloud, since it will be part of a radio programme for families.",
)


def make_prompts(count: int, seed: int) -> list[str]:
    """So many questions, each behind none to six sentences of context; all different, the order left to chance."""
    chance = random.Random(f"offline {seed}")
    prompts = []
    for number in range(count):
        context = chance.sample(_CONTEXTS, k=number % (len(_CONTEXTS) + 1))
        ask = chance.choice(_ASKS).format(chance.choice(_SUBJECTS))
        prompts.append(" ".join([*context, f"This is question {number + 1}.", ask]))
    chance.shuffle(prompts)
    return prompts
