"""
What a scenario is: sessions of requests, made from a seed, for whoever sends them.

A session is one visit of one client. It yields requests and is sent the answer to each before it says the next one, so
that a conversation can quote what the model said. A closed-loop user runs sessions one after another; in an open loop
every arrival starts one. Nothing here knows time, sockets or threads.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from loadtest.ledger import RequestRecord
from loadtest.outcomes import Outcome
from loadtest.scenarios.text import TokenScale

Family = Literal["chat", "completions", "embeddings"]
"""How the answer is read: which fields hold text, and what counts as its proper end."""


@dataclass(frozen=True, slots=True)
class Request:
    """
    One request. `kind` is what it was within its scenario, one of the scenario's `kinds`.

    `api_key` replaces the run's own key. With `cancel_after_events` or `cancel_after_s` (seconds after sending) the
    client closes the connection once the first of them is reached; an answer that ends earlier is an ordinary answer.
    `after_s` is how long the client thinks before it asks, counted from the answer before: the request is due then.
    """

    path: str
    body: bytes
    stream: bool
    kind: str
    family: Family = "chat"
    tenant: str | None = None
    api_key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    cancel_after_events: int | None = None
    cancel_after_s: float | None = None
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a session gets back. `text` is the visible text as far as it came; `record` is None for unsent requests."""

    text: str
    outcome: Outcome
    record: RequestRecord | None = None


Session = Generator[Request, Answer, None]


@dataclass(frozen=True, slots=True)
class Defaults:
    """
    How a scenario runs when nothing else is said: `users` in a closed loop, or `rate` sessions per second in an open
    one, never both. `arrivals` is in the notation of `--arrivals`.
    """

    duration_s: float = 30.0
    users: int | None = 8
    rate: float | None = None
    arrivals: str = "closed"


@dataclass(frozen=True, slots=True)
class Context:
    """
    What is known about the target before the run.

    `salt` is new for every run unless one is given: it keeps a second run with the same seed from hitting what the
    first one left in the prefix cache. `forces_length`: the target takes vLLM's `ignore_eos` and `min_tokens`.
    `continuous_usage`: ask for token counts in every event, which vLLM alone offers. `temperature` of every answer: 0
    makes two runs do equal work; models with random weights (`load_format: dummy`) often say nothing at 0.
    """

    model: str
    scale: TokenScale
    salt: str = ""
    max_model_len: int | None = None
    forces_length: bool = False
    continuous_usage: bool = False
    temperature: float = 0.0


class Scenario(Protocol):
    """
    A kind of load. Implementations are frozen dataclasses: the context first, then their options with defaults.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    """One line."""
    kinds: ClassVar[tuple[str, ...]]
    """Every `kind` its requests can have: a closed set, for tables and labels."""
    defaults: ClassVar[Defaults]

    @property
    def context(self) -> Context:
        """The target it was made for."""

    def session(self, rng: random.Random, number: int) -> Session:
        """
        The requests of one session. All chance comes from `rng`; `number` is unique within the run.

        The same seed, number, options and context (salt included) give the same bytes, given the same answers.
        """


@runtime_checkable
class Timed(Protocol):
    """A scenario whose sessions have times of their own: arrivals "trace" follow them."""

    def arrival_times(self) -> Sequence[float]:
        """Seconds from the start of the run, ascending: session `number` starts at entry [number]. Empty: none told."""


def session_rng(seed: int, number: int) -> random.Random:
    """The source of one session's chance: independent of all other sessions, of timing and of the order of sending."""
    return random.Random(f"{seed}:{number}")
