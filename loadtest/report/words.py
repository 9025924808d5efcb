"""How figures are written: units, marks, sentences. The same words in the terminal and in HTML."""

from __future__ import annotations

import math

from loadtest.histogram import DurationHistogram
from loadtest.report.figures import Attainment, Figures
from loadtest.result import RunResult

THIN = "~ fewer than 10 / (1 - p) samples: run longer before quoting it"
INFINITE = "∞"
NOTHING = "–"
METRIC_NAMES = {
    "ttft": "TTFT",
    "ttft_from_schedule": "TTFT from schedule",
    "ttfvt": "first visible token",
    "tpot": "TPOT",
    "e2e": "end to end",
    "service": "service time",
}


def percent_name(p: float) -> str:
    """p50, p99.9."""
    return f"p{p * 100:g}"


def milliseconds(seconds: float | None) -> str:
    """For columns headed "milliseconds"."""
    if seconds is None or math.isnan(seconds):
        return NOTHING
    if math.isinf(seconds):
        return INFINITE
    return f"{seconds * 1000:,.1f}" if seconds < 0.99995 else f"{seconds * 1000:,.0f}"


def duration(seconds: float | None) -> str:
    """With its unit, three digits: 840 µs, 12.3 ms, 1.24 s, 2 min 05 s."""
    if seconds is None or math.isnan(seconds):
        return NOTHING
    if math.isinf(seconds):
        return INFINITE
    for limit, factor, unit in ((0.9995e-3, 1e6, "µs"), (0.9995, 1e3, "ms"), (99.95, 1.0, "s")):
        if seconds < limit:
            return f"{digits(seconds * factor)} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def digits(value: float) -> str:
    """About three significant digits, never scientific: 0.12, 1.23, 12.3, 1,234."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def share(value: float | None) -> str:
    """Percent; never rounded up to 100 or down to 0."""
    if value is None or math.isnan(value):
        return NOTHING
    if 0 < value < 0.001 or 0.999 < value < 1:
        return f"{value:.3%}".replace("%", " %")
    return f"{value:.1%}".replace("%", " %").replace(".0 ", " ")


def clock(seconds: float) -> str:
    """1:05, 1:02:09."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def mark(histogram: DurationHistogram, p: float) -> str:
    """The mark of a percentile with too few samples."""
    return "" if not histogram.count or histogram.well_founded(p) else "~"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def verdict(result: RunResult) -> list[str]:
    """Why this run may be believed, or may not: one sentence each."""
    health = result.health
    if not health.valid:
        return [sentence(reason) for reason in health.reasons] or ["The load generator did not keep up."]
    peak = f"{digits(health.events_per_s_peak)} events/s in the busiest second"
    if health.ceiling_events_per_s:
        used = share(health.events_per_s_peak / health.ceiling_events_per_s)
        peak += f", {used} of this machine's calibrated ceiling of {digits(health.ceiling_events_per_s)}"
    facts = [f"The load generator kept up: {peak}."]
    if health.send_lag_p99_s is not None:
        facts.append(f"Requests were sent at most {duration(health.send_lag_p99_s)} late (p99).")
    if health.loop_lag_p99_s is not None:
        facts.append(f"Its loop was at most {duration(health.loop_lag_p99_s)} late (p99).")
    facts.append(f"It used at most {share(health.cpu_share_max)} of a core per process.")
    return facts


def balance(result: RunResult) -> str:
    """The books of the whole run in one line."""
    ledger = result.ledger
    cancelled = f" + cancelled {ledger.cancelled}" if ledger.cancelled else ""
    return f"scheduled {ledger.scheduled} = ok {ledger.ok}{cancelled} + failed {ledger.failed} + unsent {ledger.unsent}"


def window_words(figures: Figures) -> str:
    """Which part of the run the figures are of."""
    start, end = figures.window
    if figures.steady:
        return f"steady window {start:.1f} to {end:.1f} s"
    return "whole run, warm-up and tail included (no raw log beside the result)"


def attainment_words(attained: Attainment) -> str:
    """Bounds and share in one line."""
    limits = ", ".join(f"{METRIC_NAMES[name]} ≤ {duration(limit)}" for name, limit in attained.bounds.items())
    return f"{share(attained.share)} of {attained.due} requests within {limits} ({digits(attained.good_per_s)} good/s)"


def notices(result: RunResult, figures: Figures) -> list[str]:
    """What a reader must know before quoting a figure, beside the verdict."""
    ledger = figures.ledger
    found = [sentence(warning) for warning in result.health.warnings]
    if ledger.without_usage:
        found.append(f"Without usage, counted by their events in the token rates: {ledger.without_usage} answers.")
    if ledger.prompt_tokens and ledger.cached_tokens:
        hit = share(ledger.cached_tokens / ledger.prompt_tokens)
        found.append(f"{hit} of the prompt tokens came from the server's prefix cache.")
    if not figures.steady:
        found.append(
            "The raw log was not found beside the result: no steady window, charts of single requests are left out."
        )
    return found
