"""One system prompt for many questions: the prefix cache at its best."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, chat_request, check_fits, system, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import OUTPUT, OUTPUT_TOKENS, about


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """The system prompts are the same throughout a run and new in the next one; the questions share nothing."""

    name: ClassVar[str] = "shared-prompt"
    description: ClassVar[str] = "questions behind a long system prompt that all share: prefix cache and routing"
    kinds: ClassVar[tuple[str, ...]] = ("question",)
    defaults: ClassVar[Defaults] = Defaults(users=8)

    context: Context
    system_tokens: Length = field(default=fixed(1024), metadata=about("tokens of each system prompt"))
    systems: int = field(default=1, metadata=about("how many system prompts there are, each equally likely", low=1))
    question_tokens: Length = field(default=fixed(64), metadata=about("tokens of the question"))
    output_tokens: Length = field(default=fixed(64), metadata=about(OUTPUT_TOKENS))
    output: Ending = field(default="fixed", metadata=about(OUTPUT))

    def __post_init__(self) -> None:
        texts = (self.system_tokens.longest, self.question_tokens.longest)
        prompt = self.context.scale.prompt_tokens(texts, system=True)
        check_fits(self.context, self.name, prompt, self.output_tokens.longest)

    def session(self, rng: random.Random, number: int) -> Session:
        """One question."""
        context, scale = self.context, self.context.scale
        own = random.Random(f"system {rng.randrange(self.systems)}")
        instruction = scale.text(own, self.system_tokens.draw(own), before=scale.salt(own, context.salt))
        question = scale.text(rng, self.question_tokens.draw(rng), before=scale.salt(rng, context.salt))
        messages = [system(instruction), user(question)]
        yield chat_request(context, messages, self.output_tokens.draw(rng), self.output, kind="question")
