"""The figures of a run for programs: what the tables show, as numbers in base units, beside what is stored anyway."""

from __future__ import annotations

import math
from typing import Any

from loadtest.objectives import missed_objectives
from loadtest.report import words
from loadtest.report.figures import PERCENTILES, DurationRow, figures
from loadtest.result import RunResult


def stored_json(result: RunResult) -> dict[str, Any]:
    """What a run stores: `figures` first, for people and `jq`; reading a result back needs only the rest."""
    return {"figures": summary(result), **result.to_json()}


def summary(result: RunResult) -> dict[str, Any]:
    """Figures of the steady window; durations in seconds, infinite ones as null."""
    found = figures(result)
    rates, attained = found.rates, found.attainment
    due = found.ledger.scheduled - found.ledger.cancelled
    return {
        "valid": result.health.valid,
        "window_s": list(found.window),
        "steady": found.steady,
        "due": due,
        "ok": found.ledger.ok,
        "failed": found.ledger.failed,
        "unsent": found.ledger.unsent,
        "cancelled": found.ledger.cancelled,
        "requests_per_s": rates.requests,
        "output_tokens_per_s": rates.output_tokens,
        "prompt_tokens_per_s": rates.prompt_tokens,
        "mean_in_flight": None if math.isnan(rates.mean_in_flight) else rates.mean_in_flight,
        "attainment": None if attained is None else attained.share,
        "good_requests_per_s": None if attained is None else attained.good_per_s,
        "missed": missed_objectives(result),
        "durations_s": {row.name: _duration(row) for row in found.rows if row.histogram.count},
    }


def _duration(row: DurationRow) -> dict[str, Any]:
    histogram = row.histogram
    names = {words.percent_name(p): p for p in PERCENTILES}
    with_lost = {name: row.percentile_with_lost(p) for name, p in names.items()}
    return {
        "mean": histogram.mean,
        **{name: row.percentile(p) for name, p in names.items()},
        "max": histogram.max,
        "samples": histogram.count,
        "thin": [name for name, p in names.items() if not histogram.well_founded(p)],
        "with_lost": {name: None if value is None or math.isinf(value) else value for name, value in with_lost.items()},
    }
