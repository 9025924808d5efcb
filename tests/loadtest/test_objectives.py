"""Thresholds: their notation, and what counts as a miss."""

from __future__ import annotations

import pytest

from loadtest.ledger import Ledger, RequestRecord
from loadtest.objectives import missed_objectives, objective_texts, parse_objectives
from loadtest.outcomes import Outcome
from loadtest.result import ClientHealth, RunResult
from loadtest.target import UsageError

HEALTH = ClientHealth(None, 0.0, None, None, None, 0.0, True)


def result(ttfts_s: list[float], failed: int, **objectives: float) -> RunResult:
    ok = [
        RequestRecord("r", 0.0, Outcome.OK, 0.0, first_token_s=t, last_token_s=t, status=200, token_events=1)
        for t in ttfts_s
    ]
    lost = [RequestRecord("r", 0.0, Outcome.RESET, 0.0) for _ in range(failed)]
    return RunResult({}, Ledger.of([*ok, *lost]), [], [], HEALTH, (0.0, 1.0), objectives)


def test_notation() -> None:
    """Milliseconds, seconds, percent."""
    found = parse_objectives(["ttft_p95=500ms", "e2e_p99.9=10s", "itl_p50=800us", "attainment=99.5%"])

    assert found == pytest.approx({"ttft_p95": 0.5, "e2e_p99.9": 10, "itl_p50": 0.0008, "attainment": 0.995})
    assert ["ttft_p95 ≤ 500 ms", "attainment ≥ 99.50%"] == [objective_texts(found)[i] for i in (0, 3)]


@pytest.mark.parametrize(
    ("failed", "limit", "missed"),
    [(0, 0.2, False), (0, 0.05, True), (5, 0.2, False), (6, 0.2, True)],
)
def test_a_percentile_counts_failures_as_infinite(failed: int, limit: float, missed: bool) -> None:
    """With 95 answers within 0.1 s, five failures leave p95 where it was and the sixth makes it infinite."""
    assert missed is bool(missed_objectives(result([0.1] * 95, failed, ttft_p95=limit)))


def test_attainment_needs_a_bound_on_whole_requests() -> None:
    """A percentile of gaps says nothing about a single request: refused before any load, not found missing after it."""
    with pytest.raises(UsageError, match="only bounds on gaps"):
        parse_objectives(["gaps_p99=100ms", "itl_p50=20ms", "attainment=99%"])

    assert 3 == len(parse_objectives(["gaps_p99=100ms", "ttft_p95=1s", "attainment=99%"]))


def test_attainment_is_of_all_that_were_due() -> None:
    """Nine good ones of ten are 90 %, whether the tenth was late or failed."""
    late, lost = result([0.1] * 9 + [9.0], 0, ttft_p50=1.0), result([0.1] * 9, 1, ttft_p50=1.0)
    for one in (late, lost):
        one.objectives["attainment"] = 0.95
        assert ["attainment: expected at least 95.00%, found 90.00%"] == missed_objectives(one)
        one.objectives["attainment"] = 0.9
        assert [] == missed_objectives(one)


def test_a_threshold_on_nothing_is_missed() -> None:
    """A run without samples proves nothing."""
    assert ["ttft_p95: expected at most 1 s, found no samples"] == missed_objectives(result([], 0, ttft_p95=1.0))
