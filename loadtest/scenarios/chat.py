"""Single questions: the plainest load."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, chat_request, check_fits, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import OUTPUT, OUTPUT_TOKENS, PROMPT_TOKENS, about


@dataclass(frozen=True, slots=True)
class Chat:
    """Each session is one question; no two share a beginning."""

    name: ClassVar[str] = "chat"
    description: ClassVar[str] = "single questions, nothing shared between them"
    kinds: ClassVar[tuple[str, ...]] = ("chat",)
    defaults: ClassVar[Defaults] = Defaults(users=8)

    context: Context
    prompt_tokens: Length = field(default=fixed(128), metadata=about(PROMPT_TOKENS))
    output_tokens: Length = field(default=fixed(64), metadata=about(OUTPUT_TOKENS))
    output: Ending = field(default="fixed", metadata=about(OUTPUT))

    def __post_init__(self) -> None:
        check_fits(self.context, self.name, self.prompt_tokens.longest, self.output_tokens.longest)

    def session(self, rng: random.Random, number: int) -> Session:
        """One question."""
        scale = self.context.scale
        tokens = self.prompt_tokens.draw(rng) - scale.chat_tokens
        text = scale.text(rng, tokens, before=scale.salt(rng, self.context.salt))
        yield chat_request(self.context, [user(text)], self.output_tokens.draw(rng), self.output, kind="chat")
