"""Chat that comes in bursts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from loadtest.scenarios.base import Defaults
from loadtest.scenarios.chat import Chat


@dataclass(frozen=True, slots=True)
class Burst(Chat):
    """The mean rate is modest; the gaps between arrivals are very uneven (gamma with shape 0.1)."""

    name: ClassVar[str] = "burst"
    description: ClassVar[str] = "single questions that arrive in bursts: does the queue drain between them?"
    defaults: ClassVar[Defaults] = Defaults(users=None, rate=2.0, arrivals="gamma:0.1", duration_s=60.0)
