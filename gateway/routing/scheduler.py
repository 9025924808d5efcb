"""Filters, weighted scorers and the picker, joined into the choice of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.candidate import Candidate
from gateway.routing.decision import Decision, Question, Scorer
from gateway.types import DecisionReason, Policy, WorkerState

# Looking up a member of an enumeration is a call of a function; these are used for every request.
_READY: Final = WorkerState.READY
_TIE: Final = DecisionReason.TIE
_BEST_SCORE: Final = DecisionReason.BEST_SCORE


class Scheduler:
    """
    Chooses a worker: filters shrink the list, scorers weigh what is left, the highest sum wins.

    Among equals the worker wins that was chosen longest ago. A plain rotating index would favour the worker after a
    missing one; picking the first would send everything there whenever load is zero (the skew other routers had).

    It never waits, does no I/O and knows no time; its only memory is whose turn it was, by worker name (a fixed set).

    Args:
        policy: Name of the combination, for the metric.
        scorers: Pairs of weight and scorer; weights are positive and need not sum to one.
    """

    def __init__(self, policy: Policy, scorers: Sequence[tuple[float, Scorer]]) -> None:
        self.policy = policy
        self._scorers = tuple(scorers)
        self._total_weight = sum(weight for weight, _ in scorers)
        self._turn = 0
        self._last_turn: dict[str, int] = {}

    def choose(self, question: Question, candidates: Sequence[Candidate]) -> Decision | None:
        """The best worker, None when none may serve."""
        scored, rejected, failing_open = _filter(question, candidates)
        if not scored:
            return None
        scores = self._scores(question, scored)
        best = max(scores)
        winner = -1
        oldest = 0
        ties = 0
        last_turn = self._last_turn
        for index, score in enumerate(scores):
            if score == best:
                ties += 1
                turn = last_turn.get(scored[index].worker, -1)
                if winner < 0 or turn < oldest:
                    winner, oldest = index, turn
        if failing_open:
            reason = DecisionReason.FAIL_OPEN
        elif len(scored) == 1:
            reason = DecisionReason.ONLY
        else:
            reason = _TIE if ties > 1 else _BEST_SCORE
        worker = scored[winner].worker
        self._turn += 1
        last_turn[worker] = self._turn
        return Decision(worker, self.policy, reason, scored, scores, rejected)

    def _scores(self, question: Question, scored: Sequence[Candidate]) -> list[float]:
        totals = [0.0] * len(scored)
        for weight, scorer in self._scorers:
            share = weight / self._total_weight
            for index, score in enumerate(scorer.scores(question, scored)):
                totals[index] += share * (0.0 if score < 0.0 else 1.0 if score > 1.0 else score)
        return totals


def _filter(
    question: Question, candidates: Sequence[Candidate]
) -> tuple[list[Candidate], tuple[tuple[str, str], ...], bool]:
    """
    Who may serve, who may not and why, and whether open circuits had to be ignored.

    A circuit is a suspicion. When it is all that stands between a request and an error, the request goes through. A
    worker that is full is no error: the request waits for it rather than go to a suspect.
    """
    scored: list[Candidate] = []
    suspects: list[Candidate] = []
    rejected: list[tuple[str, str]] = []
    busy = False
    excluded = question.excluded
    for candidate in candidates:
        if candidate.state is not _READY:
            rejected.append((candidate.worker, candidate.state))
        elif candidate.worker in excluded:
            rejected.append((candidate.worker, "tried before"))
        elif candidate.full:
            rejected.append((candidate.worker, "full"))
            busy = busy or candidate.admits
        elif not candidate.admits:
            suspects.append(candidate)
        else:
            scored.append(candidate)
    if not scored and not busy:
        return suspects, tuple(rejected), bool(suspects)
    rejected.extend((suspect.worker, "circuit open") for suspect in suspects)
    return scored, tuple(rejected), False
