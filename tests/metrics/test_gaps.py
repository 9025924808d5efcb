"""Gaps are handed on whole, soon, and in the bucket where the standard library's bisection would put them."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.gaps import FLUSH_S, TokenGaps, bucket_of

BOUNDS = st.lists(st.floats(0, 100), unique=True, max_size=30).map(sorted)


class Histogram:
    def __init__(self, bounds: list[float]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0
        self.told = 0

    def add(self, counts: list[int], total_s: float) -> None:
        self.counts = [one + more for one, more in zip(self.counts, counts, strict=True)]
        self.total_s += total_s
        self.told += 1


@given(BOUNDS, st.floats(-1, 200), st.data())
def test_bounds_are_inclusive_as_those_of_the_standard_library(
    bounds: list[float], value: float, data: st.DataObject
) -> None:
    for one in (value, data.draw(st.sampled_from(bounds or [value]))):
        assert bucket_of(bounds, one) == bisect_left(bounds, one)


@given(BOUNDS, st.lists(st.tuples(st.floats(0, 200), st.floats(0, 1)), max_size=60))
def test_every_gap_is_handed_on_once(bounds: list[float], gaps: list[tuple[float, float]]) -> None:
    """However they fall into the times of flushing; a second flush has nothing to tell."""
    histogram = Histogram(bounds)
    counted = TokenGaps(bounds, histogram.add)
    now = 0.0
    for seconds, later_s in gaps:
        now += later_s
        counted.observe(seconds, now)
    counted.flush()
    told = histogram.told
    counted.flush()

    expected = [0] * (len(bounds) + 1)
    for seconds, _ in gaps:
        expected[bisect_left(bounds, seconds)] += 1
    assert histogram.counts == expected
    assert histogram.total_s == pytest.approx(sum(seconds for seconds, _ in gaps))
    assert histogram.told == told


def test_a_long_stream_is_seen_while_it_runs() -> None:
    histogram = Histogram([1.0])
    counted = TokenGaps([1.0], histogram.add)

    for number in range(3):
        counted.observe(0.5, 100 + number * 0.6 * FLUSH_S)

    assert (histogram.told, histogram.counts) == (1, [3, 0])
