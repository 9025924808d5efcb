"""The notation of lengths, and what is drawn."""

from __future__ import annotations

import random
from statistics import median, quantiles

import pytest

from loadtest.scenarios.lengths import Length


@pytest.mark.parametrize("text", ["200", "50-400", "lognormal:200:800", "lognormal:200:800:900"])
def test_lengths_are_written_as_they_are_read(text: str) -> None:
    """For stored settings."""
    assert text == str(Length.parse(text))


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "400-50", "0-5", "1.5", "normal:1:2", "lognormal:800:200", "lognormal:2:8:7", "many"]
)
def test_other_notations_are_refused(text: str) -> None:
    """The message shows the notation and what was found."""
    with pytest.raises(ValueError, match="expected tokens"):
        Length.parse(text)


def test_draws_stay_within_and_reach_the_bounds() -> None:
    """Fixed, uniform, and a log-normal with the median and 95th percentile it was given."""
    rng = random.Random(1)
    skewed = [Length.parse("lognormal:200:800").draw(rng) for _ in range(4000)]

    assert {7} == {Length.parse("7").draw(rng) for _ in range(9)}
    assert {3, 4, 5} == {Length.parse("3-5").draw(rng) for _ in range(99)}
    assert median(skewed) == pytest.approx(200, rel=0.06)
    assert quantiles(skewed, n=20)[-1] == pytest.approx(800, rel=0.12)
    assert max(skewed) <= Length.parse("lognormal:200:800").longest == 1600
    assert 900 == max(Length.parse("lognormal:200:800:900").draw(rng) for _ in range(999))
