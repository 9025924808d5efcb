"""Questions over retrieved passages: long prompts that share pieces in changing order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, chat_request, check_fits, system, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import OUTPUT, OUTPUT_TOKENS, about


@dataclass(frozen=True, slots=True)
class Rag:
    """
    A shared instruction, then passages from a corpus in the order of their relevance, then the question.

    Passages are popular by Zipf's law: the n-th is asked for in proportion to 1/n. A prefix cache can help with the
    instruction, and further only as long as the same passages come first.
    """

    name: ClassVar[str] = "rag"
    description: ClassVar[str] = "questions over retrieved passages, some more popular than others"
    kinds: ClassVar[tuple[str, ...]] = ("question",)
    defaults: ClassVar[Defaults] = Defaults(users=4)

    context: Context
    corpus: int = field(default=200, metadata=about("passages there are", low=1, high=1_000_000))
    passages: int = field(default=4, metadata=about("passages in a prompt", low=1))
    passage_tokens: Length = field(default=fixed(256), metadata=about("tokens of a passage"))
    instruction_tokens: int = field(default=96, metadata=about("tokens of the instruction that all share", low=1))
    question_tokens: Length = field(default=fixed(32), metadata=about("tokens of the question"))
    output_tokens: Length = field(default=fixed(96), metadata=about(OUTPUT_TOKENS))
    output: Ending = field(default="fixed", metadata=about(OUTPUT))
    _popularity: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = self.passages * self.passage_tokens.longest + self.question_tokens.longest
        prompt = self.context.scale.prompt_tokens((self.instruction_tokens, found), system=True)
        check_fits(self.context, self.name, prompt, self.output_tokens.longest)
        weights = (1 / rank for rank in range(1, self.corpus + 1))
        object.__setattr__(self, "_popularity", tuple(accumulate(weights)))

    def session(self, rng: random.Random, number: int) -> Session:
        """One question."""
        context, scale = self.context, self.context.scale
        shared = random.Random("instruction")
        instruction = scale.text(shared, self.instruction_tokens, before=scale.salt(shared, context.salt))
        picked = rng.choices(range(len(self._popularity)), cum_weights=self._popularity, k=self.passages)
        question = scale.text(rng, self.question_tokens.draw(rng), before=scale.salt(rng, context.salt))
        found = "\n\n".join([*map(self._passage, picked), question])
        messages = [system(instruction), user(found)]
        yield chat_request(context, messages, self.output_tokens.draw(rng), self.output, kind="question")

    def _passage(self, number: int) -> str:
        own = random.Random(f"{self.context.salt} passage {number}")
        return self.context.scale.text(own, self.passage_tokens.draw(own))
