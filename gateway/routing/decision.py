"""The parts of a routing decision: filters, scorers, and the decision itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.types import Candidate, DecisionReason, Policy


class Prompt(Protocol):
    """A request, as far as routing looks at it; `protocol.RequestView` is one."""

    @property
    def prefix(self) -> bytes:
        """The canonical beginning of the prompt. Finding it takes a while, so it is found when asked for."""
        ...


class Question(NamedTuple):
    """
    What is asked for: the model, the request itself, and the workers already tried.

    A tuple, not a dataclass: one is made for every request.
    """

    model: str
    prompt: Prompt | None = None
    excluded: frozenset[str] = frozenset()

    @property
    def prefix(self) -> bytes:
        """For policies that keep equal beginnings together; it is never logged."""
        return b"" if self.prompt is None else self.prompt.prefix


class Scorer(Protocol):
    """
    How good each candidate is for a question, in [0, 1]; values outside are clamped.

    Pure apart from memory of its own; called once for a decision, with all candidates that passed the filters, because
    most scores are relative.
    """

    def scores(self, question: Question, candidates: Sequence[Candidate]) -> Sequence[float]:
        """One score for each candidate, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Considered:
    """One candidate in a decision: its score, or why it was not scored (`score` is None then)."""

    worker: str
    score: float | None
    rejected: str = ""


class Decision(NamedTuple):
    """
    The chosen worker, why, and what was thought of every candidate.

    A tuple as `Question` is. The explanation is kept as parallel tuples and spelled out by `considered`, because it is
    read for few decisions and made for all.
    """

    worker: str
    policy: Policy
    reason: DecisionReason
    scored: tuple[Candidate, ...]
    scores: tuple[float, ...]
    rejected: tuple[tuple[str, str], ...]

    def considered(self) -> tuple[Considered, ...]:
        """Every candidate, best first, the rejected ones last."""
        ranked = sorted(
            (Considered(candidate.worker, score) for candidate, score in zip(self.scored, self.scores, strict=True)),
            key=lambda one: -(one.score or 0.0),
        )
        return (*ranked, *(Considered(worker, None, why) for worker, why in self.rejected))
