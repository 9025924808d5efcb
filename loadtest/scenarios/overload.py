"""Chat beyond what the target can take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from loadtest.scenarios.base import Defaults
from loadtest.scenarios.chat import Chat


@dataclass(frozen=True, slots=True)
class Overload(Chat):
    """
    The rate rises steadily past the target's capacity, whatever that is.

    Failures are expected here: quick, honest refusals (429 or 503 with Retry-After) are the good outcome.
    """

    name: ClassVar[str] = "overload"
    description: ClassVar[str] = "a rate that rises past the capacity: where is it, and what happens there?"
    defaults: ClassVar[Defaults] = Defaults(users=None, rate=50.0, arrivals="ramp", duration_s=60.0)
