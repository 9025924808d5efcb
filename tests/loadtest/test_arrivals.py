"""Schedules: absolute, reproducible, of the distribution they claim, and the same for any number of processes."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from loadtest.arrivals import Arrivals, arrival_times, expected_count, parse_arrivals, share
from loadtest.target import UsageError

ALL = [
    Arrivals("constant", 50),
    Arrivals("poisson", 50),
    Arrivals("gamma", 50, shape=0.25),
    Arrivals("ramp", 80, start_rate=20),
    Arrivals("ramp", 20, start_rate=80),
    Arrivals("ramp", 50),
    Arrivals("steps", levels=(20, 50, 80)),
    Arrivals("trace", trace_s=(0.0, 0.5, 0.5, 3.0, 99.0)),
]


def times(arrivals: Arrivals, duration_s: float = 60.0, seed: int = 1) -> list[float]:
    return list(arrival_times(arrivals, duration_s, seed))


@pytest.mark.parametrize("arrivals", ALL, ids=str)
def test_a_schedule_is_ordered_within_the_run_and_made_by_its_seed(arrivals: Arrivals) -> None:
    """The same seed gives the same times, another one others (where chance is involved)."""
    first = times(arrivals)

    assert first == sorted(first) == times(arrivals)
    assert 0 <= first[0] <= first[-1] < 60
    assert (first == times(arrivals, seed=2)) is (arrivals.kind in ("constant", "trace"))


@pytest.mark.parametrize("arrivals", ALL, ids=str)
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_shares_of_all_processes_are_the_schedule(arrivals: Arrivals, processes: int) -> None:
    """Nothing twice, nothing lost, numbers in order: the run does not depend on how many processes carry it."""
    shares = [share(arrival_times(arrivals, 60, 1), process, processes) for process in range(processes)]

    assert list(enumerate(times(arrivals))) == sorted(entry for one in shares for entry in one)


@pytest.mark.parametrize("arrivals", ALL[:-1], ids=str)
def test_about_as_many_arrive_as_expected(arrivals: Arrivals) -> None:
    """Within five standard deviations (gamma with shape 1/4 has twice Poisson's)."""
    expected = expected_count(arrivals, 60)

    assert abs(len(times(arrivals)) - expected) <= 5 * 2 * expected**0.5


def test_poisson_is_poisson_in_gaps_and_in_counts() -> None:
    """Gaps: standard deviation = mean. Counts per second: variance = mean, over seeds: not stretched to a total."""
    gaps = [b - a for a, b in pairwise(times(Arrivals("poisson", 50), 400))]
    counts = [len(times(Arrivals("poisson", 50), 1, seed)) for seed in range(400)]

    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(1, abs=0.03)
    assert statistics.variance(counts) / statistics.fmean(counts) == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("shape", [0.25, 4.0])
def test_gamma_is_as_bursty_as_its_shape_says(shape: float) -> None:
    """The gaps' coefficient of variation is 1 / sqrt(shape)."""
    gaps = [b - a for a, b in pairwise(times(Arrivals("gamma", 50, shape=shape), 400))]

    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(shape**-0.5, rel=0.06)


def test_constant_has_no_drift() -> None:
    """The ten-thousandth arrival is where it belongs."""
    assert times(Arrivals("constant", 1000), 11)[10_000] == 10.0


def test_ramp_and_steps_have_their_rate_at_every_part() -> None:
    """A quarter of the way up a ramp from zero a sixteenth has arrived; each step has its own share."""
    ramp, steps = times(Arrivals("ramp", 400), 100), times(Arrivals("steps", levels=(100, 400)), 100)

    assert sum(at < 25 for at in ramp) / len(ramp) == pytest.approx(1 / 16, rel=0.1)
    assert sum(at < 50 for at in steps) / len(steps) == pytest.approx(1 / 5, rel=0.1)


@pytest.mark.parametrize(
    ("text", "rate", "expected"),
    [
        ("constant", 5, Arrivals("constant", 5)),
        ("poisson", 5, Arrivals("poisson", 5)),
        ("gamma:0.5", 5, Arrivals("gamma", 5, shape=0.5)),
        ("ramp", 5, Arrivals("ramp", 5)),
        ("ramp:2", 5, Arrivals("ramp", 5, start_rate=2)),
        ("steps:1,2", None, Arrivals("steps", levels=(1, 2))),
    ],
)
def test_notations(text: str, rate: float | None, expected: Arrivals) -> None:
    """As --arrivals takes them."""
    assert expected == parse_arrivals(text, rate)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("poisson", None), ("poisson", 0), ("often", 5), ("gamma", 5), ("gamma:0", 5), ("steps:", 5), ("trace", 5)],
)
def test_bad_notations_are_refused_with_what_is_expected(text: str, rate: float | None) -> None:
    """Also a rate that is missing or zero, and a trace without a file."""
    with pytest.raises(UsageError, match="expected"):
        parse_arrivals(text, rate)
