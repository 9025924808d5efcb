"""Chat for hours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from loadtest.scenarios.base import Defaults
from loadtest.scenarios.chat import Chat
from loadtest.scenarios.lengths import Length
from loadtest.scenarios.options import OUTPUT_TOKENS, PROMPT_TOKENS, about


@dataclass(frozen=True, slots=True)
class Soak(Chat):
    """Moderate load with lengths as uneven as in real use, for long: leaks and drift show."""

    name: ClassVar[str] = "soak"
    description: ClassVar[str] = "moderate mixed load for an hour: leaks, drift, rare failures"
    defaults: ClassVar[Defaults] = Defaults(users=None, rate=1.0, arrivals="poisson", duration_s=3600.0)

    prompt_tokens: Length = field(default=Length.parse("32-512"), metadata=about(PROMPT_TOKENS))
    output_tokens: Length = field(default=Length.parse("16-256"), metadata=about(OUTPUT_TOKENS))
