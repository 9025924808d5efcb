"""Alive, slow, or hung: the judgements alone."""

from __future__ import annotations

import pytest

from gateway.config.settings import Watch
from gateway.workers.watch import LOAD_STALE_S, HangWatch, Health, HealthPatience, Progress

WATCH = Watch(probe_misses=3, hang_idle_s=60)


def test_misses_are_doubtful_then_sick_then_lost() -> None:
    """Three in a row: out of rotation; six, and nothing moves: lost."""
    patience = HealthPatience(WATCH)
    found = [patience.missed(dead=False, progressing=False) for _ in range(6)]
    assert [Health.DOUBTFUL] * 2 + [Health.SICK] * 3 + [Health.LOST] == found


def test_an_answer_clears_the_misses() -> None:
    """Only misses in a row count."""
    patience = HealthPatience(WATCH)
    for _ in range(10):
        patience.missed(dead=False, progressing=False)
        patience.missed(dead=False, progressing=False)
        assert Health.GOOD is patience.answered()
    assert Health.DOUBTFUL is patience.missed(dead=False, progressing=False)


def test_a_worker_whose_streams_move_is_never_lost_for_missed_probes() -> None:
    """Overload is cured by less work, not by a restart."""
    patience = HealthPatience(WATCH)
    found = {patience.missed(dead=False, progressing=True) for _ in range(100)}
    assert Health.LOST not in found


def test_a_dead_engine_is_sick_at_once_and_lost_soon() -> None:
    """No patience with a worker that says itself that it is dead, moving streams or not."""
    patience = HealthPatience(WATCH)
    found = [patience.missed(dead=True, progressing=True) for _ in range(3)]
    assert [Health.SICK, Health.SICK, Health.LOST] == found


def test_no_requests_means_no_hang() -> None:
    """An idle worker is silent by nature."""
    hang = HangWatch(WATCH)
    assert Progress.FINE is hang.judge(1e6)
    hang.load(0.0, 0, 1e6)
    assert Progress.FINE is hang.judge(4.0)
    assert not hang.progressing(4.0)


def reported(hang: HangWatch, from_s: int, to_s: int, silent_s: float | None = None) -> None:
    for now_s in range(from_s, to_s + 1):
        hang.load(float(now_s), 2, silent_s)


def test_silence_is_first_counted_then_tested() -> None:
    """The step counter from half of the limit on, the test at the limit."""
    hang = HangWatch(WATCH)
    reported(hang, 0, 29)
    assert Progress.FINE is hang.judge(29.9)
    reported(hang, 30, 59)
    assert Progress.COUNT is hang.judge(30.0)
    assert Progress.COUNT is hang.judge(59.9)
    reported(hang, 60, 60)
    assert Progress.TEST is hang.judge(60.0)


def test_bytes_are_progress() -> None:
    """Any byte of any stream within the limit."""
    hang = HangWatch(WATCH)
    reported(hang, 0, 600, silent_s=2.0)
    assert Progress.FINE is hang.judge(600.0)
    assert hang.progressing(600.0)


def test_a_moving_counter_is_progress_and_a_first_reading_is_not() -> None:
    """One reading says nothing; the next one, if it differs, starts the limit anew."""
    hang = HangWatch(WATCH)
    reported(hang, 0, 60)
    hang.counted(45.0, 100.0)
    assert Progress.TEST is hang.judge(60.0)
    hang.counted(60.0, 101.0)
    assert Progress.FINE is hang.judge(60.0)
    reported(hang, 61, 120)
    hang.counted(110.0, 101.0)
    assert Progress.TEST is hang.judge(120.0)


def test_a_counter_that_cannot_be_read_is_no_progress() -> None:
    """The API server may hang as well."""
    hang = HangWatch(WATCH)
    hang.counted(30.0, None)
    reported(hang, 0, 60)
    hang.counted(60.0, None)
    assert Progress.TEST is hang.judge(60.0)


def test_a_silence_from_before_the_work_does_not_count() -> None:
    """Ten idle minutes and then a request: the clock starts with the request."""
    hang = HangWatch(WATCH)
    hang.load(0.0, 0, 600.0)
    hang.load(1.0, 1, 601.0)
    assert Progress.FINE is hang.judge(1.0)
    for now_s in range(2, 62):
        hang.load(float(now_s), 1, 600.0 + now_s)
    assert Progress.TEST is hang.judge(61.0)


@pytest.mark.parametrize(("age_s", "expected"), [(LOAD_STALE_S, 3), (LOAD_STALE_S + 0.1, 0)])
def test_stale_reports_count_for_nothing(age_s: float, expected: int) -> None:
    """A gateway process that died cannot keep a worker busy."""
    hang = HangWatch(WATCH)
    assert hang.reported_at_s() is None
    hang.load(10.0, 3, None)
    assert expected == hang.in_flight(10.0 + age_s)
    assert 10.0 == hang.reported_at_s()


def test_an_answered_test_is_progress() -> None:
    """The next test comes a whole limit later."""
    hang = HangWatch(WATCH)
    reported(hang, 0, 60)
    hang.proved(60.0)
    assert Progress.FINE is hang.judge(60.0)
