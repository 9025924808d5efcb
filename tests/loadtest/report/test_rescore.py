"""Our raw log by vLLM's definitions: the differences from ours are the ones we state, the figures are vLLM's own."""

from __future__ import annotations

import dataclasses

import pytest

from loadtest.ledger import RequestRecord
from loadtest.outcomes import Outcome
from loadtest.report.rescore import rescore


def record(outcome: Outcome = Outcome.OK, **changes: object) -> RequestRecord:
    times = {"scheduled_s": 0.5, "sent_s": 1.0, "first_token_s": 1.3, "last_token_s": 1.5, "ended_s": 1.6}
    answer = {"gaps_s": (0.1, 0.1), "token_events": 3, "output_tokens": 5, "prompt_tokens": 7, "status": 200}
    more = {"other_choices_s": (1.1, 1.55)}
    return RequestRecord("id", outcome=outcome, **{**times, **answer, **more, **changes})  # type: ignore[arg-type]


def test_role_and_finish_events_count_as_chunks() -> None:
    """TTFT ends at the role event, latency at the finish event, and both make gaps."""
    score = rescore([record()])

    assert score is not None
    assert 100 == pytest.approx(score.ttft_ms.mean)
    assert 550 == pytest.approx(score.e2el_ms.mean)
    assert 450 / 4 == pytest.approx(score.tpot_ms.mean)
    assert (200 + 100 + 100 + 50) / 4 == pytest.approx(score.itl_ms.mean)
    assert 5 == score.max_output_tokens_per_s


def test_streams_that_broke_off_after_an_event_are_successes() -> None:
    """Of vLLM's client; a reset, an error status, and a stream without any event are failures."""
    good = (Outcome.OK, Outcome.IN_BAND_ERROR, Outcome.TRUNCATED, Outcome.ABORTED)
    tokenless = record(Outcome.TOKENLESS, first_token_s=None, gaps_s=(), token_events=0)
    bad = [record(Outcome.RESET), record(Outcome.HTTP_STATUS, status=503, first_token_s=None, other_choices_s=())]
    score = rescore([*map(record, good), tokenless, *bad])

    assert score is not None
    assert (5, 2) == (score.completed, score.failed)


def test_what_vllm_never_sends_is_left_out() -> None:
    """Unsent and cancelled requests, and those that are not streamed chat."""
    others = [record(Outcome.UNSENT, sent_s=None), record(Outcome.CANCELLED), record(family="embeddings")]

    assert rescore(others) is None
    assert rescore([*others, record()]) == rescore([record()])


def test_without_usage_an_answer_has_one_token_and_no_tpot() -> None:
    """As vLLM without a tokenizer."""
    score = rescore([record(output_tokens=None), record()])

    assert score is not None
    assert 6 == score.total_output
    assert 450 / 4 == pytest.approx(score.tpot_ms.mean)


def test_rates_divide_by_the_whole_time_from_first_sent_to_last_ended() -> None:
    """Ramp and tail included."""
    late = record(scheduled_s=4.0, sent_s=4.0, first_token_s=4.5, last_token_s=4.7, ended_s=5.0, other_choices_s=())
    score = rescore([record(), late])

    assert score is not None
    assert 4.0 == score.duration_s
    assert 2 / 4 == score.request_throughput
    assert 10 / 4 == score.output_throughput
    assert 24 / 4 == score.total_token_throughput
    assert 1 == score.max_concurrent_requests


def test_percentiles_interpolate_as_numpy_does() -> None:
    """Between the two nearest samples; the deviation is that of a population."""
    score = rescore([dataclasses.replace(record(), sent_s=1.1 - 0.1 * k) for k in range(1, 5)])

    assert score is not None
    assert 250 == pytest.approx(score.ttft_ms.median)
    assert 385 == pytest.approx(score.ttft_ms.percentiles[95.0])
    assert 1000 * (0.0125**0.5) == pytest.approx(score.ttft_ms.std)
