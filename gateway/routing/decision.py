"""The parts of a routing decision: filters, scorers, and the decision itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.types import Candidate, DecisionReason, Policy


@dataclass(frozen=True, slots=True)
class Question:
    """
    What is asked for: the model, the canonical beginning of the prompt, and the workers already tried.

    `prefix` is for policies that keep equal beginnings together; it is never logged.
    """

    model: str
    prefix: bytes = b""
    excluded: frozenset[str] = frozenset()


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


@dataclass(frozen=True, slots=True)
class Decision:
    """
    The chosen worker, why, and what was thought of every candidate.

    The explanation is kept as parallel tuples and spelled out by `considered`, because it is read for few decisions and
    made for all.
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
