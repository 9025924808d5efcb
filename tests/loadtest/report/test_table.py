"""What people read at the end of a run: honest about failures, missing usage and thin percentiles."""

from __future__ import annotations

import io

from rich.console import Console

from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.report.figures import figures
from loadtest.report.table import print_summary
from loadtest.result import ClientHealth, RunResult
from tests.loadtest.report.invented import HEALTHY, INVALID


def record(outcome: Outcome = Outcome.OK, **changes: object) -> RequestRecord:
    times = {"scheduled_s": 0.0, "sent_s": 0.0, "first_token_s": 0.1, "last_token_s": 1.0, "ended_s": 1.0}
    answer = {"gaps_s": (0.1,) * 9, "token_events": 10, "output_tokens": 10, "prompt_tokens": 5, "status": 200}
    return RequestRecord("id", outcome=outcome, **{**times, **answer, **changes})  # type: ignore[arg-type]


def printed(*records: RequestRecord, health: ClientHealth = HEALTHY, **objectives: float) -> str:
    out = io.StringIO()
    result = RunResult({}, Ledger.of(records), [], [], health, (0.0, 2.0), objectives)
    print_summary(Console(file=out, width=120), result)
    return out.getvalue()


def test_failures_are_listed_by_class_with_a_sample_and_stay_out_of_the_durations() -> None:
    """A quick failure must not improve a percentile; beside it stands the one that counts it as infinite."""
    failed = record(Outcome.HTTP_STATUS, status=503, detail="HTTP 503: [busy]", last_token_s=0.001)
    text = printed(record(), failed, failed)

    assert "scheduled 3 = ok 1 + failed 2 + unsent 0" in text
    assert "2 × http_503: HTTP 503: [busy]" in text
    assert [row for row in text.splitlines() if "End to end" in row and "~1,000" in row]
    lost = next(row for row in text.splitlines() if "… 2 lost as ∞" in row)
    assert [*["∞"] * 6, "3"] == lost.split()[5:]
    assert "lost: failed or unsent, counted as infinitely slow" in text


def test_thin_percentiles_are_marked() -> None:
    """One sample says nothing about p99; a thousand do."""
    assert "~ fewer than" in printed(record())
    assert "~" not in printed(*(record() for _ in range(10_000)))


def test_missing_usage_and_cache_hits_are_said() -> None:
    """Both change what a rate means."""
    text = printed(record(output_tokens=None, prompt_tokens=None), record(cached_tokens=4))

    assert "Without usage, counted by their events in the token rates: 1 answers" in text
    assert "80 % of the prompt tokens came from the server's prefix cache" in text


def test_the_verdict_is_the_last_word() -> None:
    """VALID with the facts, INVALID with the reasons."""
    assert "\nVALID The load generator kept up: 1,210 events/s" in printed(record())
    assert "\nINVALID Expected a send lag p99" in printed(record(), health=INVALID)


def test_rates_credit_tokens_by_arrival_within_the_window() -> None:
    """A stream that began before the end counts with the part that came in time, also when it failed."""
    half = record(Outcome.TRUNCATED, first_token_s=1.55, last_token_s=2.45, ended_s=2.5, output_tokens=None)

    assert "0.50 requests/s, 7.50 output tokens/s" in printed(record(), half)


def test_bounds_give_attainment_over_all_that_was_due() -> None:
    """A failed and an unsent request are not good; one that the scenario cancelled is not counted."""
    ends = (
        record(),
        record(Outcome.RESET),
        record(Outcome.UNSENT),
        record(Outcome.CANCELLED),
        record(first_token_s=0.9),
    )
    text = printed(*ends, ttft_p95=0.5)

    assert "attainment: 25 % of 4 requests within TTFT ≤ 500 ms (0.50 good/s)" in text


def test_it_fits_an_ordinary_terminal() -> None:
    """80 columns, also with long durations, marks, and many samples: no cell is cut."""
    out = io.StringIO()
    slow = [record(first_token_s=21.5, last_token_s=99.9, ended_s=99.9) for _ in range(12)]
    result = RunResult({}, Ledger.of([*slow, record(Outcome.RESET)]), [], [], HEALTHY, (0.0, 2.0))
    print_summary(Console(file=out, width=80), result)
    text = out.getvalue()

    assert "~99,900" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(row.label in text for row in figures(result).rows if row.histogram.count)
    assert "…" not in text.replace("… from schedule", "").replace("… 1 lost", "").replace("… to visible", "")


def test_an_empty_run_prints() -> None:
    """Dashes, not zeros."""
    assert "–" in printed()
    assert "scheduled 0 = ok 0 + failed 0 + unsent 0" in printed()
