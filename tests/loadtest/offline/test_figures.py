"""Intervals and agreement: by known numbers."""

from __future__ import annotations

import random

import pytest

from loadtest.offline.figures import agreement, mean_interval, ratio_interval
from loadtest.offline.prompts import make_prompts


def test_one_repeat_has_no_interval() -> None:
    """A figure, and nothing that looks like certainty."""
    found = mean_interval([5.0])

    assert (found.low, found.high) == (None, None)
    assert "5" == str(found)


def test_the_interval_is_students_on_logarithms() -> None:
    """Of 1, 2 and 4 the geometric mean is 2; half the width in logarithms is 4.303 * ln 2 / sqrt 3."""
    found = mean_interval([1.0, 2.0, 4.0])

    assert found.mean == pytest.approx(2.0)
    assert (found.low, found.high) == pytest.approx((0.3574, 11.19), rel=1e-3)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Over 1,000 samples of five, about 95 in 100."""
    chance = random.Random(1)
    samples = [[chance.lognormvariate(2.0, 0.2) for _ in range(5)] for _ in range(1000)]
    covered = sum((i.low or 0) <= 7.389 <= (i.high or 0) for i in map(mean_interval, samples))

    assert 930 <= covered <= 970


def test_what_a_round_does_to_both_cancels_in_the_ratio() -> None:
    """Rounds differ tenfold, the ratio is always 3."""
    found = ratio_interval([30.0, 3.0, 300.0], [10.0, 1.0, 100.0])

    assert (3.0, 3.0, 3.0) == pytest.approx((found.mean, found.low, found.high))


def test_agreement_ends_at_the_first_difference() -> None:
    """What is equal behind it is chance."""
    found = agreement([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 3], [4, 0, 6], [0, 8, 9]])

    assert (pytest.approx(1 / 3), pytest.approx(4 / 3), pytest.approx(2 / 3), 3) == (
        found.identical,
        found.agreed_tokens,
        found.first_token,
        found.of_tokens,
    )


def test_prompts_are_reproducible_distinct_and_uneven() -> None:
    """Short and long ones in an order that has nothing to do with their length."""
    prompts = make_prompts(40, seed=3)
    lengths = [len(text) for text in prompts]

    assert prompts == make_prompts(40, seed=3) != make_prompts(40, seed=4)
    assert 40 == len(set(prompts))
    assert max(lengths) > 5 * min(lengths)
    assert lengths not in (sorted(lengths), sorted(lengths, reverse=True))
