"""The benchmark's judgement: certain only when the whole interval lies on one side of the bar."""

from __future__ import annotations

import pytest

from loadtest.bench.bars import Interval, Judgement, judge, ratio


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.8, 1.0, Judgement.PASSED),
        (1.01, 1.2, Judgement.FAILED),
        (0.9, 1.1, Judgement.UNDECIDED),
    ],
)
def test_an_interval_across_the_bar_decides_nothing(low: float, high: float, expected: Judgement) -> None:
    """Neither a lucky mean passes nor an unlucky one fails."""
    assert expected == judge(Interval((low + high) / 2, low, high), 1.0)


def test_noise_that_hits_a_whole_round_cancels() -> None:
    """Ratios are taken inside a round: a machine that was slow for one round leaves the ratio alone."""
    interval = ratio([10.0, 30.0, 10.0], [20.0, 60.0, 20.0])

    assert (0.5, 0.5, 0.5) == (interval.mean, interval.low, interval.high)


def test_the_interval_covers_the_spread_of_the_rounds() -> None:
    """Rounds that disagree give a wide interval, so that a bar between them stays undecided."""
    interval = ratio([9.0, 11.0, 9.0, 11.0, 10.0], [10.0] * 5)

    assert interval.low < 1.0 < interval.high
    assert Judgement.UNDECIDED == judge(interval, 1.0)


def test_a_missing_round_is_an_error() -> None:
    """Rounds are compared in pairs; an unpaired one must not be dropped in silence."""
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0, 2.0], [1.0])
