"""Decision 10, row by row."""

from __future__ import annotations

import pytest

from gateway.protocol.retry import Action, Cause, cause_of_in_band, cause_of_status, decide
from gateway.types import Outcome, Phase, RetryReason

EARLY = [Phase.CONNECTING, Phase.HEADERS, Phase.FIRST_EVENT]

TABLE = {
    Cause.CONNECT: (Action.NEXT_WORKER, RetryReason.CONNECT, Outcome.UPSTREAM_CONNECT, True),
    Cause.STALE_CONNECTION: (Action.FRESH_CONNECTION, RetryReason.STALE_CONNECTION, Outcome.UPSTREAM_ERROR, False),
    Cause.CONNECTION_LOST: (Action.NEXT_WORKER, RetryReason.CONNECTION_LOST, Outcome.UPSTREAM_ERROR, True),
    Cause.STATUS_502: (Action.NEXT_WORKER, RetryReason.STATUS_5XX, Outcome.UPSTREAM_ERROR, True),
    Cause.STATUS_503: (Action.NEXT_WORKER, RetryReason.STATUS_5XX, Outcome.UPSTREAM_ERROR, True),
    Cause.STATUS_4XX: (Action.FAIL, None, Outcome.CLIENT_ERROR, False),
    Cause.STATUS_5XX: (Action.FAIL, None, Outcome.UPSTREAM_ERROR, True),
    Cause.DRAINING_ENGINE: (Action.NEXT_WORKER, RetryReason.DRAINING_ENGINE, Outcome.UPSTREAM_ERROR, True),
    Cause.IN_BAND_ERROR: (Action.NEXT_WORKER, RetryReason.IN_BAND_ERROR, Outcome.UPSTREAM_ERROR, True),
    Cause.IN_BAND_4XX: (Action.FAIL, None, Outcome.CLIENT_ERROR, False),
    Cause.INCOMPLETE: (Action.NEXT_WORKER, RetryReason.CONNECTION_LOST, Outcome.UPSTREAM_INCOMPLETE, True),
    Cause.ABORTED: (Action.NEXT_WORKER, RetryReason.CONNECTION_LOST, Outcome.UPSTREAM_INCOMPLETE, True),
    Cause.TIMEOUT: (Action.FAIL, None, Outcome.UPSTREAM_TIMEOUT, True),
    Cause.PROTOCOL: (Action.FAIL, None, Outcome.UPSTREAM_ERROR, True),
}


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("phase", EARLY)
def test_c43_the_table(phase: Phase, cause: Cause) -> None:
    """Before the first event, with retries left."""
    verdict = decide(phase, cause, retries_left=1)

    assert TABLE[cause] == (verdict.action, verdict.reason, verdict.outcome, verdict.blames_worker)


@pytest.mark.parametrize("cause", list(Cause))
def test_c01_nothing_is_tried_again_after_the_first_event(cause: Cause) -> None:
    """The client has part of an answer that a second attempt would not continue."""
    verdict = decide(Phase.STREAMING, cause, retries_left=5)

    assert (Action.FAIL, None) == (verdict.action, verdict.reason)
    assert TABLE[cause][2] is verdict.outcome


@pytest.mark.parametrize("cause", list(Cause))
def test_c44_without_retries_left_only_a_stale_connection_is_tried_again(cause: Cause) -> None:
    """That one costs no budget: the request has not reached the worker."""
    expected = Action.FRESH_CONNECTION if cause is Cause.STALE_CONNECTION else Action.FAIL

    assert expected is decide(Phase.HEADERS, cause, retries_left=0).action


def test_c39_a_connection_that_is_stale_twice_costs_a_retry() -> None:
    """The fresh connection is used once per exchange."""
    assert (
        Action.NEXT_WORKER is decide(Phase.HEADERS, Cause.STALE_CONNECTION, retries_left=1, stale_retried=True).action
    )
    assert Action.FAIL is decide(Phase.HEADERS, Cause.STALE_CONNECTION, retries_left=0, stale_retried=True).action


@pytest.mark.parametrize("cause", [Cause.CONNECTION_LOST, Cause.INCOMPLETE, Cause.ABORTED])
def test_a_request_that_saw_two_workers_die_is_not_tried_again(cause: Cause) -> None:
    """It may be what kills them."""
    assert Action.NEXT_WORKER is decide(Phase.HEADERS, cause, retries_left=5, deaths=1).action
    assert Action.FAIL is decide(Phase.HEADERS, cause, retries_left=5, deaths=2).action


def test_deaths_do_not_count_where_the_request_was_not_in_flight() -> None:
    """A refused connection harms nobody."""
    assert Action.NEXT_WORKER is decide(Phase.CONNECTING, Cause.CONNECT, retries_left=1, deaths=2).action


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b"", Cause.STATUS_4XX),
        (404, b"", Cause.STATUS_4XX),
        (429, b"", Cause.STATUS_4XX),
        (401, b"", Cause.STATUS_5XX),
        (403, b"", Cause.STATUS_5XX),
        (500, b"", Cause.STATUS_5XX),
        (500, b'{"message":"cannot schedule new futures after shutdown"}', Cause.DRAINING_ENGINE),
        (502, b"", Cause.STATUS_502),
        (503, b"", Cause.STATUS_503),
        (504, b"", Cause.STATUS_5XX),
    ],
)
def test_c43_statuses_are_classified(status: int, body: bytes, expected: Cause) -> None:
    """A client's fault is never tried again; a draining engine answers 500 and not 503."""
    assert expected is cause_of_status(status, body)


@pytest.mark.parametrize(
    ("status", "expected"), [(400, Cause.IN_BAND_4XX), (401, Cause.IN_BAND_ERROR), (502, Cause.IN_BAND_ERROR)]
)
def test_c06_in_band_errors_are_classified_by_the_status_they_stand_for(status: int, expected: Cause) -> None:
    """As first event they decide between an answer and another worker."""
    assert expected is cause_of_in_band(status)
