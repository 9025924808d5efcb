"""What repeats say: means and ratios with 95 % intervals, and how far two engines agree. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom, then that of 10: wider than need be.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval; without bounds where there was one repeat only."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def mean_interval(values: Sequence[float]) -> Interval:
    """
    Geometric mean of positive figures, with Student's t on their logarithms: an interval that never goes below zero.
    """
    logs = [math.log(value) for value in values]
    return _interval(logs)


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """
    How many times one is the other, paired by round: what one noisy round does to both cancels.
    """
    return _interval([math.log(a / b) for a, b in zip(ours, theirs, strict=True)])


def _interval(logs: Sequence[float]) -> Interval:
    centre = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(centre), None, None)
    half = _T95[min(len(logs) - 1, len(_T95)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


@dataclass(frozen=True, slots=True)
class Agreement:
    """
    How far two sets of greedy answers to the same prompts are the same.

    `identical` is the share of answers that are equal to the end; `agreed_tokens` the mean number of tokens before the
    first difference. After one differing token two answers are about different texts, so nothing behind it is compared.
    """

    identical: float
    agreed_tokens: float
    first_token: float
    of_tokens: int

    def to_json(self) -> dict[str, Any]:
        """For the stored result."""
        return asdict(self)


def agreement(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> Agreement:
    """Compares answer by answer."""
    agreed = [_agreed(a, b) for a, b in zip(one, other, strict=True)]
    length = max(map(len, one))
    return Agreement(
        identical=statistics.fmean(a == len(answer) for a, answer in zip(agreed, one, strict=True)),
        agreed_tokens=statistics.fmean(agreed),
        first_token=statistics.fmean(a > 0 for a in agreed),
        of_tokens=length,
    )


def _agreed(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
