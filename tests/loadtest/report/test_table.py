"""What people read: honest about failures, missing usage and thin percentiles."""

from __future__ import annotations

import io
import json

from rich.console import Console

from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.report import print_table, result_json


def ledger_of(*records: RequestRecord) -> Ledger:
    ledger = Ledger()
    for record in records:
        ledger.schedule()
        ledger.settle(record)
    return ledger


def record(outcome: Outcome = Outcome.OK, **changes: object) -> RequestRecord:
    figures = {"ttft_s": 0.1, "e2e_s": 1.0, "tpot_s": 0.01, "gaps_s": (0.01,) * 9, "output_tokens": 10, "ended_s": 1.0}
    return RequestRecord("id", 0.0, 0.0, outcome, **{**figures, **changes})  # type: ignore[arg-type]


def printed(ledger: Ledger) -> str:
    out = io.StringIO()
    print_table(Console(file=out, width=120), ledger)
    return out.getvalue()


def test_failures_are_listed_by_class_with_a_sample_and_stay_out_of_the_durations() -> None:
    """A quick failure must not improve a percentile."""
    failed = record(Outcome.HTTP_STATUS, status=503, detail="HTTP 503: [busy]", e2e_s=0.001)
    text = printed(ledger_of(record(), failed, failed))

    assert "scheduled 3 = ok 1 + failed 2 + unsent 0" in text
    assert "2 × http_503: HTTP 503: [busy]" in text
    assert "1000.0" in text


def test_thin_percentiles_are_marked() -> None:
    """One sample says nothing about p99."""
    assert "~" in printed(ledger_of(record()))


def test_missing_usage_is_said() -> None:
    """Token rates without those requests would be too low in silence."""
    assert "1 without usage" in printed(ledger_of(record(output_tokens=None)))


def test_an_empty_run_prints_and_serialises() -> None:
    """Dashes, not zeros; and a failure share that fails the run."""
    ledger = Ledger()

    assert "–" in printed(ledger)
    assert ledger.failure_share() == 1.0
    json.dumps(result_json(ledger, {}))


def test_the_json_has_rates_summary_counts_and_every_request() -> None:
    """Enough to score the run again by other definitions."""
    result = json.loads(json.dumps(result_json(ledger_of(record(), record(Outcome.RESET)), {"users": 1})))

    assert (result["scheduled"], result["ok"], result["failures"]) == (2, 1, {"reset": 1})
    assert result["rates"]["output_tokens_per_s"] == 10
    assert [r["outcome"] for r in result["requests"]] == ["ok", "reset"]
    assert result["requests"][0]["gaps_us"] == [10_000] * 9
    assert result["histograms"]["gaps"]["count"] == 9
