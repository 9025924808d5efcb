"""The books: each duration has one definition, and merging, grouping and storing keep every figure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome, UnsentReason

STREAM = RequestRecord(
    request_id="r",
    scheduled_s=1.0,
    outcome=Outcome.OK,
    sent_s=1.25,
    connect_s=0.125,
    first_token_s=2.0,
    first_visible_s=2.5,
    last_token_s=3.5,
    ended_s=3.75,
    status=200,
    gaps_s=(0.5, 1.0),
    token_events=3,
    prompt_tokens=22,
    output_tokens=11,
)


def test_every_duration_has_its_definition() -> None:
    """TTFT from sending and from schedule, visible token, E2E from schedule, service time, lag without connecting."""
    assert (STREAM.ttft_s, STREAM.ttft_from_schedule_s, STREAM.ttfvt_s) == (0.75, 1.0, 1.25)
    assert (STREAM.e2e_s, STREAM.service_s) == (2.5, 2.25), "to the last token, not to the usage or [DONE] after it"
    assert STREAM.send_lag_s == 0.125, "the server's share of opening a connection is not the client's lag"
    assert STREAM.tpot_s == pytest.approx(0.15), "ten tokens after the first event in 1.5 s"
    assert list(STREAM.token_times_s()) == [2.0, 2.5, 3.5]


def test_gap_and_per_token_latency_are_two_figures() -> None:
    """With 1, 2 and 8 tokens in the events the gaps stay, each token of an event gets its share."""
    told = replace(STREAM, chunk_tokens=(1, 2, 8))
    durations = Ledger.of([told]).durations

    assert list(told.itl_s()) == [0.25] * 2 + [0.125] * 8
    assert (durations.gaps.count, durations.itl.count) == (2, 10)
    assert Ledger.of([STREAM]).durations.itl.count == 0, "not guessed where the server does not tell"


def test_tpot_leaves_out_the_tokens_of_the_first_event() -> None:
    """Continuous usage tells that eight of eleven came at once."""
    assert replace(STREAM, chunk_tokens=(8, 1, 2)).tpot_s == pytest.approx(0.5)


@pytest.mark.parametrize("tokens", [None, 0, 1])
def test_tpot_is_unknown_without_usage_or_with_a_single_token(tokens: int | None) -> None:
    """Rather than a division that means nothing."""
    assert replace(STREAM, output_tokens=tokens).tpot_s is None


def test_an_answer_that_is_no_stream_ends_with_its_last_byte() -> None:
    """An embedding has no first token, but it took time."""
    embedding = RequestRecord("r", 1.0, Outcome.OK, sent_s=1.5, ended_s=4.0, status=200, prompt_tokens=5)

    assert (embedding.ttft_s, embedding.e2e_s, embedding.service_s) == (None, 3.0, 2.5)


def test_every_outcome_is_in_one_place() -> None:
    """scheduled = ok + cancelled + failed + unsent; only what failed is a failure."""
    unsent = RequestRecord("r", 1.0, Outcome.UNSENT, detail=UnsentReason.IN_FLIGHT_LIMIT)
    busy = replace(STREAM, outcome=Outcome.HTTP_STATUS, status=503, detail="HTTP 503: busy")
    ledger = Ledger.of([STREAM, replace(STREAM, outcome=Outcome.CANCELLED), busy, busy, unsent])
    ledger.schedule()

    assert (ledger.scheduled, ledger.ok, ledger.cancelled, ledger.failed) == (6, 1, 1, 2)
    assert (ledger.unsent, ledger.in_flight, ledger.balanced) == (1, 1, True)
    assert (dict(ledger.failures), dict(ledger.unsent_reasons)) == ({"http_503": 2}, {"in_flight_limit": 1})
    assert ledger.failure_share() == 0.5
    assert ledger.durations.e2e.count == 1, "quick failures and cancelled requests never improve a percentile"


def test_histograms_follow_the_records_whenever_they_are_asked_for() -> None:
    """Asking in the middle of a run counts nothing twice."""
    ledger = Ledger.of([STREAM])
    assert ledger.durations.gaps.count == 2
    ledger.schedule()
    ledger.settle(STREAM)

    assert ledger.durations.gaps.count == 4
    assert ledger.durations.to_json() == Ledger.of([STREAM, STREAM]).durations.to_json()


def test_records_and_books_survive_json() -> None:
    """Records to a microsecond per gap, books exactly."""
    full = replace(STREAM, chunk_tokens=(1, 2, 8), other_choices_s=(1.9, 3.6), tenant="a", finish_reason="stop")
    again = RequestRecord.from_json(json.loads(json.dumps(full.to_json())))
    ledger = Ledger.of([full, replace(full, outcome=Outcome.RESET)])
    stored = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))

    assert replace(again, gaps_s=()) == replace(full, gaps_s=(), chunk_tokens=[1, 2, 8], other_choices_s=[1.9, 3.6])
    assert list(again.gaps_s) == pytest.approx(full.gaps_s, abs=1e-6)
    assert stored.to_json() == ledger.to_json()
