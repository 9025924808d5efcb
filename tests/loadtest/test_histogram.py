"""Mergeable histograms: percentiles within a quarter of a percent, merging loses nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.histogram import DurationHistogram

VALUES = st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=200)


def filled(values: list[float]) -> DurationHistogram:
    histogram = DurationHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(values=VALUES, p=st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_within_a_quarter_percent_of_the_exact_one(values: list[float], p: float) -> None:
    """Against the sorted list."""
    exact = sorted(values)[max(1, math.ceil(p * len(values))) - 1]

    assert filled(values).percentile(p) == pytest.approx(exact, rel=0.0026)


@given(a=VALUES, b=VALUES)
def test_merging_equals_counting_together(a: list[float], b: list[float]) -> None:
    """Also through JSON, as workers send it."""
    merged = DurationHistogram.from_json(filled(a).to_json())
    merged.merge(filled(b))
    together = filled(a + b)

    assert merged.buckets == together.buckets
    assert (merged.count, merged.min, merged.max) == (together.count, together.min, together.max)
    assert merged.sum == pytest.approx(together.sum)


def test_an_empty_histogram_has_no_percentiles_and_survives_json() -> None:
    """None, not zero."""
    empty = DurationHistogram.from_json(DurationHistogram().to_json())

    assert empty.percentile(0.5) is None
    assert empty.mean is None


@pytest.mark.parametrize(("count", "p", "expected"), [(20, 0.5, True), (19, 0.5, False), (999, 0.99, False)])
def test_a_percentile_needs_ten_values_beyond_it(count: int, p: float, expected: bool) -> None:
    """10 / (1 - p) samples."""
    assert filled([1.0] * count).well_founded(p) is expected


def test_edges_are_the_upper_ends_of_the_buckets_in_use() -> None:
    """Ascending, each within half a percent above the values in it, with all counts."""
    histogram = filled([0.2, 0.1, 0.1])

    edges = list(histogram.edges())

    assert [2, 1] == [count for _, count in edges]
    assert all(value <= upper <= value * 1.005 for (upper, _), value in zip(edges, (0.1, 0.2), strict=True))
