"""Clients that leave before their answer is complete."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import ClassVar

from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, chat_request, check_fits, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import OUTPUT, OUTPUT_TOKENS, PROMPT_TOKENS, about


@dataclass(frozen=True, slots=True)
class Cancel:
    """
    Some clients close their connection, at a random event of the stream or a random moment soon after asking.

    Those who stay show whether the server frees what the others held.
    """

    name: ClassVar[str] = "cancel"
    description: ClassVar[str] = "clients that leave at random points: is what they held freed?"
    kinds: ClassVar[tuple[str, ...]] = ("stays", "leaves-midway", "leaves-early")
    defaults: ClassVar[Defaults] = Defaults(users=8)

    context: Context
    leave: float = field(default=0.5, metadata=about("share of clients that leave", high=1))
    early: float = field(default=0.25, metadata=about("share of the leavers that go by time, not by event", high=1))
    early_s: float = field(default=0.5, metadata=about("the latest moment for these, seconds after sending"))
    prompt_tokens: Length = field(default=fixed(128), metadata=about(PROMPT_TOKENS))
    output_tokens: Length = field(default=fixed(128), metadata=about(OUTPUT_TOKENS))
    output: Ending = field(default="fixed", metadata=about(OUTPUT))

    def __post_init__(self) -> None:
        check_fits(self.context, self.name, self.prompt_tokens.longest, self.output_tokens.longest)

    def session(self, rng: random.Random, number: int) -> Session:
        """One question, perhaps abandoned."""
        scale = self.context.scale
        tokens = self.prompt_tokens.draw(rng) - scale.chat_tokens
        text = scale.text(rng, tokens, before=scale.salt(rng, self.context.salt))
        length = self.output_tokens.draw(rng)
        request = chat_request(self.context, [user(text)], length, self.output, kind="stays")
        leaves, early, where = rng.random() < self.leave, rng.random() < self.early, rng.random()
        if leaves and early:
            request = replace(request, kind="leaves-early", cancel_after_s=where * self.early_s)
        elif leaves:
            request = replace(request, kind="leaves-midway", cancel_after_events=1 + int(where * (length - 1)))
        yield request
