"""
Prometheus metrics of a running load test: what exists, and the collector that reads it from the live books.

Nothing is counted twice: a scrape reads the merged ledger, so the figures are those of the final table at that moment.
`docs/loadtest-metrics.md` documents every family; a test holds the two together.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from loadtest.histogram import DurationHistogram
from loadtest.ledger import Durations, Ledger
from loadtest.outcomes import Outcome

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.4, 0.6, 0.8),
    *(1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
GAP_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0),
)
DURATION_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0),
    *(10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0),
)
"""The bounds of the gateway's own histograms, so that both sides of it can be laid over each other in one panel."""

STATUSES = (400, 401, 403, 404, 408, 413, 422, 429, 500, 502, 503, 504)
"""Statuses that are an outcome of their own; any other is `http_other`, which keeps the label's values a closed set."""

SLICE_S = 0.001
"""A scrape counts for so long, then lets the load go on for as long."""

OUTCOMES = (
    *(str(outcome) for outcome in Outcome if outcome is not Outcome.HTTP_STATUS),
    *(f"http_{status}" for status in STATUSES),
    "http_other",
)
"""Label values of `loadtest_requests_total`."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `name` is the name in a query: with `_total` for counters, without a suffix for histograms."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


INFO = Family(
    "loadtest_run_info",
    "gauge",
    "Always 1; what runs, as the command line says.",
    labels=("scenario", "arrivals", "model"),
)
SCHEDULED = Family("loadtest_scheduled_requests_total", "counter", "Requests that were due, sent or not.")
REQUESTS = Family(
    "loadtest_requests_total",
    "counter",
    "Requests that ended, by outcome; cancelled as the scenario wanted, unsent when given up before their first byte.",
    labels=("outcome",),
)
IN_FLIGHT = Family("loadtest_in_flight_requests", "gauge", "Requests that are due and have not ended.")
PROMPT_TOKENS = Family(
    "loadtest_prompt_tokens_total", "counter", "Prompt tokens of successes, from the server's usage."
)
CACHED_TOKENS = Family(
    "loadtest_cached_prompt_tokens_total", "counter", "The part of the prompt tokens that a prefix cache held."
)
OUTPUT_TOKENS = Family(
    "loadtest_output_tokens_total", "counter", "Generated tokens of successes, from the server's usage."
)
TOKEN_EVENTS = Family(
    "loadtest_token_events_total", "counter", "Token-bearing stream events received, failures included."
)
TTFT = Family(
    "loadtest_time_to_first_token_seconds",
    "histogram",
    "Successes: from sending to the first token-bearing event.",
    buckets=FIRST_TOKEN_BUCKETS,
)
TTFT_FROM_SCHEDULE = Family(
    "loadtest_time_to_first_token_from_schedule_seconds",
    "histogram",
    "Successes: from the scheduled moment to the first token-bearing event.",
    buckets=FIRST_TOKEN_BUCKETS,
)
GAP = Family(
    "loadtest_token_event_gap_seconds",
    "histogram",
    "Successes: between two token-bearing events of a stream.",
    buckets=GAP_BUCKETS,
)
PER_TOKEN = Family(
    "loadtest_per_token_latency_seconds",
    "histogram",
    "Successes: each gap divided by the tokens that ended it, once per token; empty unless the server tells them.",
    buckets=GAP_BUCKETS,
)
TPOT = Family(
    "loadtest_time_per_output_token_seconds",
    "histogram",
    "Successes: (last - first token-bearing event) / (output tokens - tokens in the first event).",
    buckets=GAP_BUCKETS,
)
E2E = Family(
    "loadtest_request_duration_seconds",
    "histogram",
    "Successes: from the scheduled moment to the last token-bearing event.",
    buckets=DURATION_BUCKETS,
)
SEND_LAG = Family(
    "loadtest_send_lag_seconds",
    "gauge",
    "Largest delay between schedule and sending in the last second: the client's own.",
)
ELAPSED = Family("loadtest_elapsed_seconds", "gauge", "Time since the start of the run.")
DURATION = Family(
    "loadtest_planned_duration_seconds", "gauge", "Time that requests are sent for, as the command line says."
)

FAMILIES = (
    *(INFO, SCHEDULED, REQUESTS, IN_FLIGHT, PROMPT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS, TOKEN_EVENTS),
    *(TTFT, TTFT_FROM_SCHEDULE, GAP, PER_TOKEN, TPOT, E2E, SEND_LAG, ELAPSED, DURATION),
)


class Sample(Protocol):
    """What the collector needs of a timeline sample."""

    @property
    def at_s(self) -> float:
        """Seconds since the start of the run."""

    @property
    def send_lag_max_s(self) -> float:
        """Largest send lag since the sample before."""


class RunCollector(Collector):
    """The live books of one run. `state` gives the merged ledger and the latest sample, None before the first."""

    def __init__(self, settings: Mapping[str, Any], state: Callable[[], tuple[Ledger, Sample | None]]) -> None:
        self._settings = settings
        self._state = state
        self._durations = Durations()
        self._read = 0
        self._one_at_a_time = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Every family, in the order of `FAMILIES`."""
        ledger, sample = self._state()
        settings = self._settings
        yield _gauge(INFO, 1.0, tuple(str(settings.get(label) or "unknown") for label in INFO.labels))
        yield _counter(SCHEDULED, ledger.scheduled)
        yield _outcomes(ledger)
        yield _gauge(IN_FLIGHT, ledger.in_flight)
        for family, count in (
            (PROMPT_TOKENS, ledger.prompt_tokens),
            (CACHED_TOKENS, ledger.cached_tokens),
            (OUTPUT_TOKENS, ledger.output_tokens),
            (TOKEN_EVENTS, ledger.token_events),
        ):
            yield _counter(family, count)
        durations = self._count(ledger)
        for family, histogram in (
            (TTFT, durations.ttft),
            (TTFT_FROM_SCHEDULE, durations.ttft_from_schedule),
            (GAP, durations.gaps),
            (PER_TOKEN, durations.itl),
            (TPOT, durations.tpot),
            (E2E, durations.e2e),
        ):
            yield _histogram(family, histogram)
        yield _gauge(SEND_LAG, sample.send_lag_max_s if sample else 0.0)
        yield _gauge(ELAPSED, sample.at_s if sample else 0.0)
        yield _gauge(DURATION, float(settings.get("duration_s") or 0.0))

    def _count(self, ledger: Ledger) -> Durations:
        """
        Histograms of all successes so far.

        Scrapes run in the process that sends and times: tens of thousands of gaps since the scrape before, counted in
        one go, would hold every stream up for tens of milliseconds.
        """
        with self._one_at_a_time:
            pause_at = time.perf_counter() + SLICE_S
            while self._read < len(ledger.records):
                record = ledger.records[self._read]
                self._read += 1
                if record.outcome is Outcome.OK:
                    self._durations.add(record)
                if time.perf_counter() > pause_at:
                    time.sleep(SLICE_S)
                    pause_at = time.perf_counter() + SLICE_S
        return self._durations


def outcome_label(failure: str) -> str:
    """The label value of a failure class of the ledger (`http_418` and the like are `http_other`)."""
    return failure if failure in OUTCOMES else "http_other"


def _outcomes(ledger: Ledger) -> Metric:
    counts = dict.fromkeys(OUTCOMES, 0)
    counts.update(ok=ledger.ok, cancelled=ledger.cancelled, unsent=ledger.unsent)
    for failure, count in ledger.failures.items():
        counts[outcome_label(failure)] += count
    family = CounterMetricFamily(REQUESTS.name, REQUESTS.help, labels=REQUESTS.labels)
    for outcome, count in counts.items():
        family.add_metric((outcome,), count)
    return family


def _counter(spec: Family, value: float) -> Metric:
    return CounterMetricFamily(spec.name, spec.help, value=value)


def _gauge(spec: Family, value: float, labels: tuple[str, ...] = ()) -> Metric:
    family = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
    family.add_metric(labels, value)
    return family


def _histogram(spec: Family, histogram: DurationHistogram) -> Metric:
    # A fine bucket counts where its upper edge lies: at most 0.5 % above the true value.
    counts = [0] * (len(spec.buckets) + 1)
    for upper_s, count in histogram.edges():
        counts[bisect_left(spec.buckets, upper_s)] += count
    cumulative, buckets = 0, []
    for bound, count in zip((*spec.buckets, math.inf), counts, strict=True):
        cumulative += count
        buckets.append((floatToGoString(bound), float(cumulative)))  # type: ignore[no-untyped-call]
    return HistogramMetricFamily(spec.name, spec.help, buckets=buckets, sum_value=histogram.sum)
