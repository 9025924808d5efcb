"""
The figures of a run, pure: percentiles and rates of the steady window, attainment, failures.

Durations are those of requests scheduled within the window. Rates count what happened within it: answers by their end,
tokens by their arrival, those of requests that failed later included. Percentiles come twice: of successes, and with
every failed or unsent request as infinitely slow. Requests that the scenario itself cancelled are in neither.
Attainment = requests that met every bound / all that were due (failed and unsent ones are bad).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadtest.histogram import DurationHistogram
from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.result import RunResult

PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
TWICE = ("ttft", "tpot", "e2e")
"""Rows that tables show with failures as infinite too; their variants would only repeat the picture."""

_BOUND = re.compile(r"(ttft|ttft_from_schedule|ttfvt|tpot|e2e|service)_p[\d.]+")


@dataclass(frozen=True, slots=True)
class DurationRow:
    """One kind of duration. `lost` is how many requests count as infinite; gaps belong to no request and lose none."""

    name: str
    label: str
    meaning: str
    histogram: DurationHistogram
    lost: int = 0

    @property
    def twice(self) -> bool:
        """Whether a table has a second line for it."""
        return self.lost > 0 and self.name in TWICE

    def percentile(self, p: float) -> float | None:
        """Of successes."""
        return self.histogram.percentile(p)

    def percentile_with_lost(self, p: float) -> float | None:
        """With failed and unsent requests as infinite; None without any request."""
        lost, count = self.lost, self.histogram.count
        if not count + lost:
            return None
        rank = max(1, math.ceil(p * (count + lost)))
        # Half a rank lower: the same rank again, whatever the division rounds to.
        return math.inf if rank > count else self.histogram.percentile((rank - 0.5) / count)


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second of the window; requests are successes."""

    requests: float
    output_tokens: float
    prompt_tokens: float
    mean_in_flight: float


@dataclass(frozen=True, slots=True)
class Attainment:
    """How many of the requests that were due met every bound (seconds by metric)."""

    bounds: Mapping[str, float]
    good: int
    due: int
    good_per_s: float

    @property
    def share(self) -> float | None:
        """0 to 1; None when nothing was due."""
        return self.good / self.due if self.due else None


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that the table, the tiles and the comparison show."""

    window: tuple[float, float]
    steady: bool
    """Whether the figures are those of the window; False: the raw log is missing, they are those of the whole run."""
    ledger: Ledger
    """The books of the requests scheduled within the window."""
    rows: tuple[DurationRow, ...]
    rates: Rates
    attainment: Attainment | None

    def row(self, name: str) -> DurationRow:
        """The row of this name."""
        return next(row for row in self.rows if row.name == name)

    @property
    def lost(self) -> int:
        """Failed and unsent requests of the window."""
        return self.ledger.failed + self.ledger.unsent


def figures(result: RunResult) -> Figures:
    """The figures of the steady window, or of the whole run where the result came without its raw log."""
    start, end = result.window
    records = result.ledger.records
    if not records and result.ledger.scheduled:
        ledger = result.ledger
        return Figures(result.window, False, ledger, _rows(ledger), _whole_rates(ledger), None)
    ledger = Ledger.of(record for record in records if start <= record.scheduled_s < end)
    return Figures(
        result.window, True, ledger, _rows(ledger), _rates(records, start, end), attainment(result, ledger.records)
    )


def bounds(result: RunResult) -> dict[str, float]:
    """
    Upper limits for one request, in seconds: `ttft_p95` limits the TTFT of each request, the strictest one wins.

    A percentile of gaps says nothing about a single request.
    """
    found: dict[str, float] = {}
    for name, limit in result.objectives.items():
        if match := _BOUND.fullmatch(name):
            found[match[1]] = min(limit, found.get(match[1], math.inf))
    return found


def attainment(result: RunResult, records: Iterable[RequestRecord]) -> Attainment | None:
    """How many of these requests met every bound of the run; None without bounds."""
    limits = bounds(result)
    if not limits:
        return None
    good = due = 0
    for record in records:
        if record.outcome is Outcome.CANCELLED:
            continue
        due += 1
        good += record.outcome is Outcome.OK and all(_value(record, name) <= limit for name, limit in limits.items())
    seconds = max(result.window[1] - result.window[0], 1e-9)
    return Attainment(limits, good, due, good / seconds)


def _value(record: RequestRecord, metric: str) -> float:
    """What a bound is compared with; a request without such a figure (an embedding has no TTFT) cannot miss it."""
    value = getattr(record, f"{metric}_s")
    return 0.0 if value is None else float(value)


def _rows(ledger: Ledger) -> tuple[DurationRow, ...]:
    durations, lost = ledger.durations, ledger.failed + ledger.unsent
    return (
        DurationRow("ttft", "Time to first token", "sent → first token-bearing event", durations.ttft, lost),
        DurationRow(
            "ttft_from_schedule",
            "… from schedule",
            "scheduled moment → first token-bearing event",
            durations.ttft_from_schedule,
            lost,
        ),
        DurationRow("ttfvt", "… to visible token", "sent → first event with visible text", durations.ttfvt, lost),
        DurationRow("gaps", "Gap between tokens", "between two token-bearing events", durations.gaps),
        DurationRow("itl", "Latency per token", "gap / tokens that ended it, per token", durations.itl),
        DurationRow("tpot", "Time per output token", "(last − first event) / later tokens", durations.tpot, lost),
        DurationRow("e2e", "End to end", "scheduled moment → last token or byte", durations.e2e, lost),
        DurationRow("service", "Service time", "sent → last token or byte", durations.service, lost),
    )


def _rates(records: Iterable[RequestRecord], start: float, end: float) -> Rates:
    seconds = max(end - start, 1e-9)
    ended = prompt = 0
    tokens = busy = 0.0
    for record in records:
        if record.sent_s is not None:
            busy += max(0.0, min(record.ended_s, end) - max(record.sent_s, start))
        if record.outcome is Outcome.OK and start <= record.ended_s < end:
            ended += 1
            prompt += record.prompt_tokens or 0
        for at, count in arrivals(record):
            if start <= at < end:
                tokens += count
    return Rates(ended / seconds, tokens / seconds, prompt / seconds, busy / seconds)


def arrivals(record: RequestRecord) -> Iterable[tuple[float, float]]:
    """(moment, tokens) of what a request received; an answer that is no stream arrives at its end."""
    if record.token_events:
        return zip(record.token_times_s(), record.tokens_per_event(), strict=True)
    return ((record.ended_s, record.output_tokens),) if record.output_tokens else ()


def _whole_rates(ledger: Ledger) -> Rates:
    wall = ledger.wall_s
    return Rates(ledger.ok / wall, ledger.output_tokens / wall, ledger.prompt_tokens / wall, math.nan)
