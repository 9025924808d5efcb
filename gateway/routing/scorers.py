"""Scorers: each looks at one thing."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.candidate import Candidate
from gateway.routing.decision import Question


class LeastInFlight:
    """The fewer attempts in flight the better: 1 for an idle worker, falling linearly to the busiest."""

    def scores(self, question: Question, candidates: Sequence[Candidate]) -> Sequence[float]:
        """Relative to the busiest candidate, so that a difference of one counts for less the busier all are."""
        busiest = 1
        for candidate in candidates:
            if candidate.in_flight > busiest:
                busiest = candidate.in_flight
        return [1.0 - candidate.in_flight / busiest for candidate in candidates]


class Equal:
    """All are as good: what is left is whose turn it is."""

    def scores(self, question: Question, candidates: Sequence[Candidate]) -> Sequence[float]:
        """1 for everybody."""
        return [1.0] * len(candidates)
