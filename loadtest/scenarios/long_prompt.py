"""Long documents with short answers: prefill."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, chat_request, check_fits, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import OUTPUT, OUTPUT_TOKENS, PROMPT_TOKENS, about

USUAL_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """Each session is one long prompt that no other shares."""

    name: ClassVar[str] = "long-prompt"
    description: ClassVar[str] = "long prompts with short answers: the cost of prefill"
    kinds: ClassVar[tuple[str, ...]] = ("long-prompt",)
    defaults: ClassVar[Defaults] = Defaults(users=4)

    context: Context
    prompt_tokens: Length | None = field(
        default=None, metadata=about(PROMPT_TOKENS + f"; unset: {USUAL_TOKENS}, or half of the model's context")
    )
    output_tokens: Length = field(default=fixed(32), metadata=about(OUTPUT_TOKENS))
    output: Ending = field(default="fixed", metadata=about(OUTPUT))

    def __post_init__(self) -> None:
        check_fits(self.context, self.name, self.length.longest, self.output_tokens.longest)

    @property
    def length(self) -> Length:
        """The prompt's length for this model."""
        room = self.context.max_model_len or 2 * USUAL_TOKENS
        return self.prompt_tokens or fixed(min(USUAL_TOKENS, max(1, room // 2)))

    def session(self, rng: random.Random, number: int) -> Session:
        """One prompt."""
        scale = self.context.scale
        tokens = self.length.draw(rng) - scale.chat_tokens
        text = scale.text(rng, tokens, before=scale.salt(rng, self.context.salt))
        yield chat_request(self.context, [user(text)], self.output_tokens.draw(rng), self.output, kind="long-prompt")
