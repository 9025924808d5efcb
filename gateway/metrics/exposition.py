"""From totals to Prometheus text, with what only the supervisor knows added."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.metrics import catalogue as c
from gateway.metrics.catalogue import Metric
from gateway.metrics.layout import SeriesKey
from gateway.metrics.totals import Values
from gateway.types import WorkerState

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""The `Content-Type` of what `render` returns."""

_RESTART_REASONS = frozenset((*c.RESTART_REASONS_WHILE_SERVING, *c.RESTART_REASONS_AT_START))

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class WorkerReport(Protocol):
    """What the exposition needs of a worker; `workers.status.WorkerStatus` has it."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def state(self) -> WorkerState: ...
    @property
    def restart_reasons(self) -> tuple[tuple[str, int], ...]:
        """Pairs of reason (a word of the program's, never free text) and how often; counts only grow."""
        ...


class StartDurations:
    """How long workers took from spawn to READY; kept by the supervisor, one observation per successful start."""

    def __init__(self) -> None:
        self._values: Values = {}

    def observe(self, model: str, seconds: float) -> None:
        """A worker of `model` became READY `seconds` after its spawn."""
        metric = c.WORKER_START_DURATION
        values = self._values.setdefault((metric, (model,)), [0.0] * metric.width)
        values[bisect_left(metric.buckets, seconds)] += 1.0
        values[-1] += seconds

    def values(self) -> Mapping[SeriesKey, list[float]]:
        """In the form `render` takes."""
        return self._values


def render(
    totals: Mapping[SeriesKey, list[float]],
    workers: Sequence[WorkerReport] = (),
    start_durations: StartDurations | None = None,
    progress_age_s: Mapping[str, float] | None = None,
    more: Mapping[SeriesKey, list[float]] | None = None,
) -> bytes:
    """
    The whole `/metrics` text.

    Takes tens of milliseconds for thousands of series: call it in a worker thread, on arguments nobody changes.

    Args:
        totals: From `Totals.whole()` or `Totals.merged()`.
        workers: All workers of the fleet.
        start_durations: Durations of the starts so far.
        progress_age_s: By worker name, the age of its last byte in seconds; workers without are taken as 0.
        more: Further series; what is in the totals as well is added up.
    """
    values: Values = dict(totals)
    values.update(_worker_values(workers, progress_age_s or {}))
    if start_durations is not None:
        values.update(start_durations.values())
    for key, added in (more or {}).items():
        present = values.get(key)
        values[key] = added if present is None else [a + b for a, b in zip(present, added, strict=True)]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Totals(values))
    return generate_latest(registry)


class _Totals(Collector):
    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterable[Family]:
        by_metric: dict[str, list[tuple[tuple[str, ...], list[float]]]] = {}
        for (metric, labels), values in self._values.items():
            by_metric.setdefault(metric.name, []).append((labels, values))
        for metric in c.CATALOGUE:
            yield _family(metric, by_metric.get(metric.name, []))


def _family(metric: Metric, series: list[tuple[tuple[str, ...], list[float]]]) -> Family:
    shown = {labels[: metric.shown_by] for labels, values in series if any(values)}
    visible = [item for item in series if not metric.shown_by or item[0][: metric.shown_by] in shown]
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels, values in visible:
            histogram.add_metric(labels, list(_cumulative(metric, values)), sum_value=values[-1])
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(metric.name.removesuffix("_total"), metric.meaning, labels=metric.labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for labels, values in visible:
        family.add_metric(labels, values[0])
    return family


def _cumulative(metric: Metric, values: list[float]) -> Iterator[tuple[str, float]]:
    total = 0.0
    for bound, count in zip((*map(floatToGoString, metric.buckets), "+Inf"), values, strict=False):
        total += count
        yield bound, total


def _worker_values(workers: Sequence[WorkerReport], progress_age_s: Mapping[str, float]) -> Values:
    values: Values = {}
    for worker in workers:
        for state in WorkerState:
            values[c.WORKER_STATE, (worker.model, worker.name, str(state))] = [float(worker.state is state)]
        restarts = dict.fromkeys(c.RESTART_REASONS_WHILE_SERVING, 0)
        for reason, count in worker.restart_reasons:
            known = reason if reason in _RESTART_REASONS else c.OTHER
            restarts[known] = restarts.get(known, 0) + count
        for reason, count in restarts.items():
            values[c.WORKER_RESTARTS, (worker.model, worker.name, reason)] = [float(count)]
        age = progress_age_s.get(worker.name, 0.0)
        values[c.WORKER_PROGRESS_AGE, (worker.model, worker.name)] = [age]
    return values
