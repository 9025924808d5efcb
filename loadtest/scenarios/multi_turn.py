"""Conversations: every turn carries all that was said before, the model's own answers included."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import ClassVar

from loadtest.outcomes import Outcome
from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, assistant, chat_request, check_fits, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import OUTPUT, OUTPUT_TOKENS, about


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """A session is one conversation. It ends early when a turn fails: nobody goes on talking to an error."""

    name: ClassVar[str] = "multi-turn"
    description: ClassVar[str] = "conversations that grow by the model's own answers"
    kinds: ClassVar[tuple[str, ...]] = ("turn-1", "turn-2", "turn-3", "turn-4", "later-turn")
    defaults: ClassVar[Defaults] = Defaults(users=8, duration_s=60.0)

    context: Context
    turns: int = field(default=4, metadata=about("questions in a conversation", low=1, high=1000))
    first_tokens: Length = field(default=fixed(128), metadata=about("tokens of the first question"))
    turn_tokens: Length = field(default=fixed(48), metadata=about("tokens of each later question"))
    output_tokens: Length = field(default=fixed(64), metadata=about(OUTPUT_TOKENS))
    output: Ending = field(default="fixed", metadata=about(OUTPUT))
    think_s: float = field(default=0.0, metadata=about("seconds from an answer to the next question"))

    def __post_init__(self) -> None:
        later = [self.output_tokens.longest, self.turn_tokens.longest] * (self.turns - 1)
        prompt = self.context.scale.prompt_tokens([self.first_tokens.longest, *later])
        check_fits(self.context, self.name, prompt, self.output_tokens.longest)

    def session(self, rng: random.Random, number: int) -> Session:
        """One conversation."""
        context, scale = self.context, self.context.scale
        text = scale.text(rng, self.first_tokens.draw(rng), before=scale.salt(rng, context.salt))
        messages = [user(text)]
        for turn in range(self.turns):
            kind = self.kinds[min(turn, len(self.kinds) - 1)]
            request = chat_request(context, messages, self.output_tokens.draw(rng), self.output, kind=kind)
            answer = yield replace(request, after_s=self.think_s if turn else 0.0)
            if answer.outcome is not Outcome.OK:
                return
            messages += [assistant(answer.text), user(scale.text(rng, self.turn_tokens.draw(rng)))]
