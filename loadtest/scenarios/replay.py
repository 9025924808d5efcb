"""Recorded load: the times and lengths of a trace, or the questions of a file of conversations."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import ClassVar, Literal

from loadtest.datasets import FORMATS, recognise
from loadtest.datasets.entry import BLOCK_TOKENS, Entry
from loadtest.outcomes import Outcome
from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, assistant, chat_request, user
from loadtest.scenarios.options import OUTPUT, about
from loadtest.target import UsageError

_CERTAIN_CHARACTERS = 2.5
"""Characters to a token that hardly any text goes below: a prompt cut by it fits for certain."""
_SPARE = 8
"""Tokens kept free where a prompt is cut to the context: those of a salt, and where pieces of text meet."""

Format = Literal["auto", "azure", "burstgpt", "mooncake", "sharegpt"]


@dataclass(frozen=True, slots=True)
class Replay:
    """
    Entry [number] of the file is what session `number` asks for; after the last one it begins anew.

    Traces hold lengths, so their prompts are synthetic; blocks that a Mooncake trace repeats are repeated text, so that
    a prefix cache hits as it did. Conversations are asked turn by turn, with the model's own answers between.
    """

    name: ClassVar[str] = "replay"
    description: ClassVar[str] = "a trace or conversations from a file (ShareGPT, Azure, BurstGPT, Mooncake)"
    kinds: ClassVar[tuple[str, ...]] = ("first-turn", "later-turn")
    defaults: ClassVar[Defaults] = Defaults(users=8, duration_s=60.0)

    context: Context
    file: str = field(default="", metadata=about("the file; required"))
    format: Format = field(default="auto", metadata=about(f"{', '.join(FORMATS)}; auto: by the file's beginning"))
    skip: int = field(default=0, metadata=about("entries, or conversations, to leave out at the beginning"))
    limit: int = field(default=10_000, metadata=about("entries, or conversations, to read at most", low=1))
    time_scale: float = field(default=1.0, metadata=about("2 plays a trace in half the time", low=1e-6))
    max_prompt_tokens: int | None = field(default=None, metadata=about("longer prompts are cut to it", low=1))
    max_output_tokens: int | None = field(default=None, metadata=about("longer answers are cut to it", low=1))
    turns: int = field(default=8, metadata=about("turns of a conversation at most", low=1))
    output: Ending = field(default="fixed", metadata=about(OUTPUT.replace("output_tokens", "the recorded tokens")))
    _sessions: tuple[tuple[Entry, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.file:
            raise UsageError("replay: expected a file, found none: add --option file=PATH")
        path = Path(self.file)
        format = recognise(path) if self.format == "auto" else self.format
        try:
            found = tuple(islice(_sessions(FORMATS[format](path)), self.skip, self.skip + self.limit))
        except OSError as error:
            raise UsageError(f"replay: expected a file that can be read, found {path}: {error.strerror}") from error
        if not found:
            raise UsageError(f"replay: expected entries after the first {self.skip} of {path}, found none")
        object.__setattr__(self, "_sessions", tuple(sorted(found, key=_time)))

    def arrival_times(self) -> Sequence[float]:
        """When each entry comes, from the first one's time on; empty for conversations, which have no times."""
        if self._sessions[0][0].at_s is None:
            return ()
        first = _time(self._sessions[0])
        return [(_time(entries) - first) / self.time_scale for entries in self._sessions]

    def session(self, rng: random.Random, number: int) -> Session:
        """One entry, or one conversation."""
        entries = self._sessions[number % len(self._sessions)]
        messages: list[dict[str, str]] = []
        spent = self.context.scale.chat_tokens
        for turn, entry in enumerate(entries[: self.turns]):
            output = self._output_tokens(entry)
            room = self._room(output) - spent
            if room < 1:
                return  # the conversation has outgrown the model's context
            text = self._text(rng, entry, room, first=not turn)
            messages.append(user(text))
            kind = self.kinds[min(turn, len(self.kinds) - 1)]
            answer = yield chat_request(self.context, messages, output, self.output, kind=kind)
            if answer.outcome is not Outcome.OK:
                return
            messages.append(assistant(answer.text))
            spent += self.context.scale.tokens_of(text) + output + self.context.scale.turn_tokens

    def _output_tokens(self, entry: Entry) -> int:
        wanted = entry.output_tokens or self.context.scale.tokens_of(entry.answer or "")
        limits = [self.max_output_tokens or wanted, (self.context.max_model_len or 2 * wanted) // 2]
        return max(1, min(wanted, *limits))

    def _room(self, output: int) -> int:
        """Tokens that a prompt may have, template included."""
        left = (self.context.max_model_len or sys.maxsize) - output - _SPARE
        return min(left, self.max_prompt_tokens or sys.maxsize)

    def _text(self, rng: random.Random, entry: Entry, room: int, *, first: bool) -> str:
        scale = self.context.scale
        salt = scale.salt(rng, self.context.salt)
        if entry.prompt is not None:
            text = f"{salt}\n{entry.prompt}" if first else entry.prompt
            return text[: int(room * _CERTAIN_CHARACTERS)]
        # A recorded length includes the recorded model's template, so the last whole block may end a little late here.
        shared = [self._block(block) for block in entry.blocks[: min(entry.prompt_tokens or 0, room) // BLOCK_TOKENS]]
        rest = min((entry.prompt_tokens or 0) - scale.chat_tokens, room) - BLOCK_TOKENS * len(shared)
        own = [scale.text(rng, max(1, rest), before=salt)] if rest > 0 or not shared else []
        return " ".join([*shared, *own])

    def _block(self, block: int) -> str:
        own = random.Random(f"{self.context.salt} block {block}")
        return self.context.scale.text(own, BLOCK_TOKENS)


def _sessions(entries: Iterator[Entry]) -> Iterator[tuple[Entry, ...]]:
    """
    Conversations whole, timed entries one by one.

    Entries without an answer are left out: they failed when they were recorded, and nothing is known of their cost.
    """
    answered = (entry for entry in entries if entry.output_tokens != 0)
    for session, group in groupby(answered, key=lambda entry: None if entry.at_s is not None else entry.session):
        if session is None:
            yield from ((entry,) for entry in group)
        else:
            yield tuple(group)


def _time(entries: tuple[Entry, ...]) -> float:
    return entries[0].at_s or 0.0
