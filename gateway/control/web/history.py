"""
What the fleet did in the last minutes, from totals looked at again and again: rates and percentiles of moving windows.

Percentiles are read off bucket counts as Prometheus' `histogram_quantile` does it: linear inside the bucket, and the
highest finite bound for what lies above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import anyio
import msgspec

from gateway.clock import Clock
from gateway.metrics.catalogue import (
    IN_FLIGHT,
    INTER_TOKEN_LATENCY,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
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

QUEUE_DEPTH = "gateway_queue_depth"

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

    Args:
        totals: Gives the current totals.
        models: Gives the public names.
    """

    def __init__(self, totals: Callable[[], Values], models: Callable[[], Sequence[str]], clock: Clock) -> None:
        self._totals = totals
        self._models = models
        self._clock = clock
        self._looks: deque[tuple[float, Values]] = deque(maxlen=PERCENTILE_WINDOW + 1)
        self._failures: deque[tuple[float, str, str, int]] = deque()
        self.samples: deque[Sample] = deque(maxlen=KEPT)

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        while True:
            self.look()
            await anyio.sleep(EVERY_S)

    def look(self) -> None:
        """Take one sample."""
        now_s, unix_s = self._clock.monotonic(), self._clock.unix()
        values = self._totals()
        if self._looks:
            self._note_failures(self._looks[-1][1], values, unix_s)
        self._looks.append((now_s, values))
        models = {name: self._sample(name, now_s, values) for name in self._models()}
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

    def _note_failures(self, before: Values, now: Values, unix_s: float) -> None:
        for (metric, labels), values in now.items():
            if metric is REQUESTS and labels[2] != Outcome.OK:
                grown = values[0] - before.get((metric, labels), [0.0])[0]
                if grown > 0:
                    self._failures.append((unix_s, labels[0], labels[2], round(grown)))
        while self._failures and self._failures[0][0] < unix_s - KEPT * EVERY_S:
            self._failures.popleft()

    def _sample(self, model: str, now_s: float, values: Values) -> ModelSample:
        then_s, then = self._looks[max(0, len(self._looks) - 1 - RATE_WINDOW)]
        elapsed_s = now_s - then_s

        def rate(metric: Metric, *, failed: bool = False) -> float:
            if elapsed_s <= 0:
                return 0.0
            return max(0.0, _sum(values, metric, model, failed) - _sum(then, metric, model, failed)) / elapsed_s

        begin = self._looks[0][1]
        ttft = _grown(begin, values, TIME_TO_FIRST_TOKEN, model)
        itl = _grown(begin, values, INTER_TOKEN_LATENCY, model)
        return ModelSample(
            in_flight=_sum(values, IN_FLIGHT, model),
            queued=sum(cells[0] for (metric, labels), cells in values.items() if _is_queue(metric, labels, model)),
            requests_per_s=rate(REQUESTS),
            failed_per_s=rate(REQUESTS, failed=True),
            output_tokens_per_s=rate(OUTPUT_TOKENS),
            prompt_tokens_per_s=rate(PROMPT_TOKENS),
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


def _sum(
    values: Mapping[tuple[Metric, tuple[str, ...]], list[float]], metric: Metric, model: str, failed: bool = False
) -> float:
    """All series of a model; of the requests only those that failed by no fault of their client, if `failed`."""
    return sum(
        cells[0]
        for (each, labels), cells in values.items()
        if each is metric and labels[0] == model and not (failed and labels[2] in _NO_FAILURE)
    )


_NO_FAILURE = frozenset({Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED})


def _grown(begin: Values, values: Values, metric: Metric, model: str) -> list[float]:
    """By bucket, what a histogram has counted since `begin`."""
    now = values.get((metric, (model,)), [0.0] * metric.width)
    then = begin.get((metric, (model,)), [0.0] * metric.width)
    return [max(0.0, a - b) for a, b in zip(now[:-1], then[:-1], strict=True)]


def _is_queue(metric: Metric, labels: tuple[str, ...], model: str) -> bool:
    return metric.name == QUEUE_DEPTH and labels[0] == model


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
