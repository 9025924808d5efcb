"""When a fallen worker starts again."""

from __future__ import annotations

from random import Random

import pytest

from gateway.config.settings import Watch
from gateway.workers.backoff import Failures, after_fall
from tests.workers.fakes import NoJitter

WATCH = Watch(backoff_initial_s=1, backoff_max_s=60, stable_after_s=300, max_fast_failures=1000)


def pauses(count: int, watch: Watch = WATCH) -> list[float | None]:
    failures, found = Failures(), []
    for _ in range(count):
        verdict = after_fall(failures, served_s=None, permanent=False, watch=watch, random=NoJitter())
        failures = verdict.failures
        found.append(verdict.pause_s)
    return found


def test_the_pause_doubles_up_to_its_maximum() -> None:
    """1, 2, 4 ... and never more than backoff_max_s, however long the row."""
    assert [1, 2, 4, 8, 16, 32, 60, 60] == pauses(8)
    assert 60 == pauses(2000, WATCH.model_copy(update={"max_fast_failures": 5000}))[-1]


def test_the_jitter_takes_away_at_most_half() -> None:
    """Replicas that died together come back apart, and none at once."""
    random = Random(7)
    found = {
        after_fall(Failures(), served_s=None, permanent=False, watch=WATCH, random=random).pause_s for _ in range(200)
    }
    assert all(pause is not None and 0.5 <= pause <= 1 for pause in found)
    assert len(found) > 100


def test_a_row_of_fast_failures_ends_in_giving_up() -> None:
    """max_fast_failures is the number of starts, not of restarts."""
    assert [1, 2, None] == pauses(3, Watch(max_fast_failures=3))
    assert [None] == pauses(1, Watch(max_fast_failures=1))


@pytest.mark.parametrize(("served_s", "expected"), [(None, 5), (299.9, 5), (300.0, 1), (9e9, 1)])
def test_a_stable_period_begins_a_new_row(served_s: float | None, expected: int) -> None:
    """Only a worker that served for stable_after_s has proved anything."""
    verdict = after_fall(Failures(4), served_s=served_s, permanent=False, watch=WATCH, random=NoJitter())
    assert expected == verdict.failures.in_row


def test_a_stable_worker_is_never_given_up_for_one_fall() -> None:
    """Even where one fast failure would be the end."""
    watch = Watch(max_fast_failures=1)
    assert 1 == after_fall(Failures(), served_s=1e6, permanent=False, watch=watch, random=NoJitter()).pause_s


def test_a_permanent_failure_gives_up_at_once() -> None:
    """Trying again without a change cannot succeed."""
    assert after_fall(Failures(), served_s=None, permanent=True, watch=WATCH, random=NoJitter()).pause_s is None
