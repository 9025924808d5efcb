"""The arithmetic of a report: what is counted where, and what failures do to a percentile."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.histogram import DurationHistogram
from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.report.figures import DurationRow, bounds, figures
from loadtest.result import RunResult
from tests.loadtest.report.invented import HEALTHY, invented_run


def run_of(*records: RequestRecord, window: tuple[float, float] = (0.0, 10.0), **objectives: float) -> RunResult:
    return RunResult({}, Ledger.of(records), [], [], HEALTHY, window, objectives)


def record(at: float, ttft: float, outcome: Outcome = Outcome.OK) -> RequestRecord:
    last = at + ttft + 0.3
    return RequestRecord(
        "id",
        at,
        outcome,
        sent_s=at,
        first_token_s=at + ttft,
        last_token_s=last,
        ended_s=last,
        gaps_s=(0.1, 0.2),
        token_events=3,
        output_tokens=3,
        status=200,
    )


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=60), st.integers(0, 40), st.floats(0.01, 0.999))
def test_a_percentile_with_lost_requests_is_that_of_the_list_with_infinities(
    values: list[float], lost: int, p: float
) -> None:
    """Rank by rank, to the width of a bucket."""
    histogram = DurationHistogram()
    for value in values:
        histogram.add(value)
    everything = sorted([*values, *[math.inf] * lost])
    exact = everything[max(1, math.ceil(p * len(everything))) - 1]
    found = DurationRow("ttft", "", "", histogram, lost).percentile_with_lost(p)

    assert found is not None
    assert exact == found if math.isinf(exact) else math.isclose(exact, found, rel_tol=0.003)


def test_warm_up_and_tail_are_in_no_duration() -> None:
    """Durations are those of requests due within the window."""
    found = figures(run_of(record(1.0, 9.0), record(5.0, 0.5), record(12.0, 9.0), window=(2.0, 10.0)))

    assert 1 == found.row("ttft").histogram.count
    assert 0.5 == found.row("ttft").percentile(0.99)


def test_tokens_count_when_they_arrive_and_answers_when_they_end() -> None:
    """A request from the warm-up that ends in the window pays in with what came in it."""
    found = figures(run_of(record(1.0, 0.95), window=(2.0, 4.0)))

    assert 0.5 == found.rates.requests
    assert 1.0 == found.rates.output_tokens  # two of three tokens, over two seconds
    assert 0.25 / 2 == pytest.approx(found.rates.mean_in_flight)


def test_bounds_come_from_thresholds_and_the_strictest_wins() -> None:
    """A percentile of gaps binds no single request, attainment itself is no bound."""
    found = bounds(run_of(ttft_p95=0.5, ttft_p50=0.2, e2e_p99=3.0, gaps_p99=0.1, attainment=0.99))

    assert {"ttft": 0.2, "e2e": 3.0} == found


def test_attainment_counts_every_request_that_was_due() -> None:
    """Late, failed and unsent ones are bad; what the scenario cancelled was not due."""
    ends = [Outcome.OK, Outcome.RESET, Outcome.UNSENT, Outcome.CANCELLED]
    found = figures(run_of(*(record(1.0, 0.1, end) for end in ends), record(1.0, 0.9), ttft_p95=0.5)).attainment

    assert found is not None
    assert (1, 4, 0.25) == (found.good, found.due, found.share)


def test_without_the_raw_log_the_figures_are_the_whole_runs_and_say_so() -> None:
    """From the stored histograms, never silently."""
    run = invented_run(seconds=10)
    stored = RunResult.from_json(run.to_json())
    found = figures(stored)

    assert not found.steady
    assert found.attainment is None
    assert run.ledger.durations.ttft.count == found.row("ttft").histogram.count


def test_an_empty_run_has_no_percentiles_and_no_rates() -> None:
    """None and zero, no division by zero."""
    found = figures(run_of(ttft_p95=0.5))

    assert found.steady
    assert found.row("e2e").percentile_with_lost(0.5) is None
    assert 0 == found.rates.requests
    assert found.attainment is not None
    assert found.attainment.share is None
