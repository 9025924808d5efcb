"""The verdict on the client: what makes a run invalid, and that nothing else does."""

from __future__ import annotations

import pytest

from loadtest.health import client_health, send_lag_limit_s
from loadtest.ledger import Ledger, RequestRecord
from loadtest.merging import MergedRun
from loadtest.outcomes import Outcome

WINDOW = (0.0, 1.0)


def run_with(lags_s: list[float], ttft_s: float = 0.02, connect_s: float | None = None) -> MergedRun:
    records = [
        RequestRecord(
            *("r", 0.0, Outcome.OK, lag + (connect_s or 0.0)),
            connect_s=connect_s,
            first_token_s=lag + (connect_s or 0.0) + ttft_s,
            token_events=1,
        )
        for lag in lags_s
    ]
    return MergedRun(ledger=Ledger.of(records))


@pytest.mark.parametrize(("ttft", "limit"), [(None, 0.005), (0.02, 0.005), (0.1, 0.005), (1.0, 0.05)])
def test_the_limit_of_the_send_lag(ttft: float | None, limit: float) -> None:
    """max(5 ms, 5 % of the median TTFT)."""
    assert send_lag_limit_s(ttft) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("lags", "ttft", "valid"),
    [
        ([0.001] * 100, 0.02, True),
        ([0.001] * 99 + [1.0], 0.02, True),
        ([0.001] * 98 + [0.006] * 2, 0.02, False),
        ([0.001] * 98 + [0.006] * 2, 0.2, True),
    ],
)
def test_late_sending_makes_a_run_invalid(lags: list[float], ttft: float, valid: bool) -> None:
    """By its 99th percentile; a slow server allows more."""
    health = client_health(run_with(lags, ttft), 1, 10_000, WINDOW)

    assert health.valid is valid
    assert bool(health.reasons) is not valid
    assert valid or "sent late" in health.reasons[0]


def test_what_is_late_in_the_warm_up_does_not_count() -> None:
    """As in every other figure."""
    run = run_with([0.5] * 10)

    assert not client_health(run, 1, None, WINDOW).valid
    assert client_health(run, 1, None, (0.1, 1.0)).valid


def test_a_slow_connect_is_not_the_clients_lag() -> None:
    """A handshake over a distance takes its round trips."""
    assert client_health(run_with([0.001] * 10, connect_s=0.3), 1, None, WINDOW).valid


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"process_events_per_s_peak": 9_100.0}, "client-bound: 9100 events/s in one process, 91%"),
        ({"cpu_share_max": 0.97}, "client-bound: a load process used 97% of a core"),
        ({"loop_lags_s": [0.001] * 98 + [0.03] * 2}, "the client's event loop was late"),
    ],
)
def test_a_client_without_room_makes_a_run_invalid(change: dict[str, object], expected: str) -> None:
    """Events against the calibrated ceiling, processor time, timers; and the reason says what to do."""
    run = run_with([0.001] * 10)
    for name, value in change.items():
        setattr(run, name, value)
    health = client_health(run, 2, 10_000, WINDOW)

    assert not health.valid
    assert expected in health.reasons[0]
    assert "--processes" in health.reasons[-1]
    assert health.ceiling_events_per_s == 20_000


def test_above_70_percent_of_the_ceiling_there_is_a_warning() -> None:
    """Up to there the accuracy is measured."""
    run = run_with([0.001] * 10)
    run.process_events_per_s_peak = 8_000.0
    health = client_health(run, 1, 10_000, WINDOW)

    assert (health.valid, len(health.warnings)) == (True, 1)


def test_a_run_without_requests_or_calibration_has_no_figures_and_no_verdict_against_it() -> None:
    """Its failure share says what is wrong with it."""
    health = client_health(MergedRun(), 1, None, WINDOW)

    assert (health.send_lag_p99_s, health.ceiling_events_per_s, health.valid) == (None, None, True)
