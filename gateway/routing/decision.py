"""The parts of a routing decision: filters, scorers, and the decision itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.candidate import Candidate
from gateway.types import DecisionReason, Policy


class Prompt(Protocol):
    """A request, as far as routing looks at it; `protocol.RequestView` is one."""

    @property
    def prefix(self) -> bytes:
        """The canonical beginning of the prompt. Finding it takes a while, so it is found when asked for."""
        ...


class Question:
    """What is asked for: the model, the request itself, and the workers already tried."""

    __slots__ = ("excluded", "model", "prompt")

    def __init__(self, model: str, prompt: Prompt | None = None, excluded: frozenset[str] = frozenset()) -> None:
        self.model = model
        self.prompt = prompt
        self.excluded = excluded

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


class Decision:
    """
    The chosen worker, why, and what was thought of every candidate.

    The explanation is kept as parallel sequences and spelled out by `considered`, because it is read for few decisions
    and made for all.
    """

    __slots__ = ("policy", "reason", "rejected", "scored", "scores", "worker")

    def __init__(
        self,
        worker: str,
        policy: Policy,
        reason: DecisionReason,
        scored: Sequence[Candidate],
        scores: Sequence[float],
        rejected: tuple[tuple[str, str], ...],
    ) -> None:
        self.worker = worker
        self.policy = policy
        self.reason = reason
        self.scored = scored
        self.scores = scores
        self.rejected = rejected

    def considered(self) -> tuple[Considered, ...]:
        """Every candidate, best first, the rejected ones last."""
        ranked = sorted(
            (Considered(candidate.worker, score) for candidate, score in zip(self.scored, self.scores, strict=True)),
            key=lambda one: -(one.score or 0.0),
        )
        return (*ranked, *(Considered(worker, None, why) for worker, why in self.rejected))
