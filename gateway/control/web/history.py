"""
What the fleet did in the last minutes, from totals looked at again and again: rates and percentiles of moving windows.

Percentiles are read off bucket counts as Prometheus' `histogram_quantile` does it: linear inside the bucket, and the
highest finite bound for what lies above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import anyio
import msgspec

from gateway.clock import Clock
from gateway.log import EventLog
from gateway.metrics.catalogue import (
    IN_FLIGHT,
    INTER_TOKEN_LATENCY,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    QUEUE_DEPTH,
    REQUESTS,
    TIME_TO_FIRST_TOKEN,
    Metric,
)
from gateway.metrics.totals import Values
from gateway.types import Outcome

EVERY_S = 2.0
KEPT = 300
"""Samples: ten minutes."""
RATE_WINDOW = 5
"""Samples a rate is taken over: ten seconds."""
PERCENTILE_WINDOW = 30
"""Samples a percentile is taken over: one minute."""

SHOWN = (
    REQUESTS,
    IN_FLIGHT,
    QUEUE_DEPTH,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
)
"""The metrics that are looked at."""

SAYING = {
    Outcome.CLIENT_ERROR: "refused because of what the client had sent (4xx)",
    Outcome.REJECTED: "turned away by a limit (429 or 503)",
    Outcome.NO_WORKER: "without a worker that could serve (503)",
    Outcome.UPSTREAM_CONNECT: "whose worker could not be reached",
    Outcome.UPSTREAM_ERROR: "answered with an error by the worker",
    Outcome.UPSTREAM_TIMEOUT: "stopped by a time limit (504)",
    Outcome.UPSTREAM_INCOMPLETE: "broken off in the middle: the worker's answer did not end properly",
    Outcome.CLIENT_CLOSED: "given up by the client",
    Outcome.SHUTDOWN: "ended by the stop of a gateway process",
    Outcome.INTERNAL: "failed by a defect of the gateway (its log says more)",
}
"""How a person is told how requests ended; "3 requests" goes before it."""


class ModelSample(msgspec.Struct, frozen=True):
    """
    One model at one moment: counts now, rates over the last ten seconds, percentiles over the last minute.

    Percentiles are milliseconds, None without traffic.
    """

    in_flight: float
    queued: float
    requests_per_s: float
    failed_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None


class Sample(msgspec.Struct, frozen=True):
    """All models at `at_unix_s`."""

    at_unix_s: float
    models: dict[str, ModelSample]


class Failures(msgspec.Struct, frozen=True):
    """Requests of a model that did not end well in the time that is kept; `last_unix_s` is the last look's time."""

    model: str
    outcome: str
    count: int
    saying: str
    last_unix_s: float


class History:
    """
    Samples of the last ten minutes. `run` is the only writer.

    Times are those of the wall clock when the history began, and go on with the monotonic clock from there: a page asks
    for what is newer than it has, and would wait for hours after a wall clock was set back.

    Args:
        totals: Gives the current totals of metrics.
        models: Gives the public names.
        log: Told when looking fails.
    """

    def __init__(
        self,
        totals: Callable[[Collection[Metric]], Values],
        models: Callable[[], Sequence[str]],
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._totals = totals
        self._models = models
        self._clock = clock
        self._log = log
        self._unix_began_s = clock.unix() - clock.monotonic()
        self._looks: deque[_Look] = deque(maxlen=PERCENTILE_WINDOW + 1)
        self._failures: deque[tuple[float, str, str, int]] = deque()
        self.samples: deque[Sample] = deque(maxlen=KEPT)

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        while True:
            try:
                self.look()
            except Exception as exc:  # a defect here is no reason to end the supervisor, whose task this is
                self._log.event("console_sample_failed", level="error", detail=repr(exc))
            await anyio.sleep(EVERY_S)

    def look(self) -> None:
        """Take one sample."""
        now_s = self._clock.monotonic()
        unix_s = self._unix_began_s + now_s
        look = _Look(now_s, _by_model(self._totals(SHOWN)))
        if self._looks:
            self._note_failures(self._looks[-1], look, unix_s)
        self._looks.append(look)
        models = {name: self._sample(name, look) for name in self._models()}
        self.samples.append(Sample(at_unix_s=round(unix_s, 3), models=models))

    def failures(self) -> list[Failures]:
        """What did not end well in the last minutes, the latest first."""
        counts: dict[tuple[str, str], tuple[int, float]] = {}
        for at, model, outcome, count in self._failures:
            before, _ = counts.get((model, outcome), (0, 0.0))
            counts[model, outcome] = (before + count, at)
        found = [
            Failures(model, outcome, count, SAYING[Outcome(outcome)], round(at, 3))
            for (model, outcome), (count, at) in counts.items()
        ]
        return sorted(found, key=lambda each: each.last_unix_s, reverse=True)

    def _note_failures(self, before: _Look, now: _Look, unix_s: float) -> None:
        for model, counts in now.models.items():
            then = before.of(model).outcomes
            for outcome, count in counts.outcomes.items():
                grown = count - then.get(outcome, 0.0)
                if outcome != Outcome.OK and grown > 0:
                    self._failures.append((unix_s, model, outcome, round(grown)))
        while self._failures and self._failures[0][0] < unix_s - KEPT * EVERY_S:
            self._failures.popleft()

    def _sample(self, model: str, look: _Look) -> ModelSample:
        then_look = self._looks[max(0, len(self._looks) - 1 - RATE_WINDOW)]
        elapsed_s = look.at_s - then_look.at_s
        now, then, begin = look.of(model), then_look.of(model), self._looks[0].of(model)

        def rate(after: float, before: float) -> float:
            return max(0.0, after - before) / elapsed_s if elapsed_s > 0 else 0.0

        ttft, itl = _grown(begin.ttft, now.ttft), _grown(begin.itl, now.itl)
        return ModelSample(
            in_flight=now.in_flight,
            queued=now.queued,
            requests_per_s=rate(sum(now.outcomes.values()), sum(then.outcomes.values())),
            failed_per_s=rate(_failed(now), _failed(then)),
            output_tokens_per_s=rate(now.output_tokens, then.output_tokens),
            prompt_tokens_per_s=rate(now.prompt_tokens, then.prompt_tokens),
            ttft_p50_ms=_ms(quantile(0.5, TIME_TO_FIRST_TOKEN.buckets, ttft)),
            ttft_p95_ms=_ms(quantile(0.95, TIME_TO_FIRST_TOKEN.buckets, ttft)),
            itl_p50_ms=_ms(quantile(0.5, INTER_TOKEN_LATENCY.buckets, itl)),
            itl_p95_ms=_ms(quantile(0.95, INTER_TOKEN_LATENCY.buckets, itl)),
        )


def quantile(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """
    The value under which a share `q` of all observations lies; None without observations.

    Args:
        bounds: Upper bounds of the finite buckets.
        counts: Observations by bucket, not cumulative, the one above the last bound included.
    """
    total = sum(counts)
    if total <= 0:
        return None
    rank, seen, low = q * total, 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= rank:
            return low + (bound - low) * (rank - seen) / count
        seen += count
        low = bound
    return bounds[-1]


_NO_FAILURE = frozenset({Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED})


@dataclass(slots=True)
class _Counts:
    """One model's totals; histograms by bucket, empty without a series."""

    in_flight: float = 0.0
    queued: float = 0.0
    output_tokens: float = 0.0
    prompt_tokens: float = 0.0
    outcomes: dict[str, float] = field(default_factory=dict)
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    models: dict[str, _Counts]

    def of(self, model: str) -> _Counts:
        return self.models.get(model) or _Counts()


def _by_model(values: Values) -> dict[str, _Counts]:
    """Every series is read once, however many models there are."""
    models: dict[str, _Counts] = {}
    for (metric, labels), cells in values.items():
        counts = models.get(labels[0])
        if counts is None:
            counts = models[labels[0]] = _Counts()
        if metric is REQUESTS:
            outcome = labels[2]
            counts.outcomes[outcome] = counts.outcomes.get(outcome, 0.0) + cells[0]
        elif metric is IN_FLIGHT:
            counts.in_flight += cells[0]
        elif metric is QUEUE_DEPTH:
            counts.queued += cells[0]
        elif metric is OUTPUT_TOKENS:
            counts.output_tokens += cells[0]
        elif metric is PROMPT_TOKENS:
            counts.prompt_tokens += cells[0]
        elif metric is TIME_TO_FIRST_TOKEN:
            counts.ttft = cells[:-1]
        elif metric is INTER_TOKEN_LATENCY:
            counts.itl = cells[:-1]
    return models


def _failed(counts: _Counts) -> float:
    """Requests that failed by no fault of their client."""
    return sum(count for outcome, count in counts.outcomes.items() if outcome not in _NO_FAILURE)


def _grown(begin: list[float], now: list[float]) -> list[float]:
    """By bucket, what a histogram has counted since `begin`."""
    return [max(0.0, after - before) for after, before in zip(now, begin or [0.0] * len(now), strict=True)]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
