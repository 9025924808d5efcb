"""Where each series of a gateway process lives in its flat array of 8-byte cells."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from operator import attrgetter

from gateway.metrics.catalogue import (
    COUNTED_BY_GATEWAY_PROCESSES,
    DEFAULT_PRIORITY,
    OTHER,
    RESTART_REASONS_AT_START,
    RESTART_REASONS_WHILE_SERVING,
    Metric,
)
from gateway.metrics.tenants import CELL_BYTES, SLOT_SERIES, TenantTable
from gateway.types import (
    DecisionReason,
    Endpoint,
    Outcome,
    Phase,
    Policy,
    RejectionReason,
    RetryReason,
    Stage,
    WorkerState,
)

CONNECTION_STATES = ("in_use", "idle")


def closed_values(metric: Metric, label: str) -> tuple[str, ...]:
    """The values a label may have, from the vocabulary; empty for names from the configuration."""
    if label == "reason":
        return {
            "gateway_rejections_total": (*map(str, RejectionReason), OTHER),
            "gateway_retries_total": tuple(map(str, RetryReason)),
            "gateway_routing_decisions_total": (*map(str, DecisionReason), OTHER),
            "gateway_worker_restarts_total": (*RESTART_REASONS_WHILE_SERVING, *RESTART_REASONS_AT_START, OTHER),
        }.get(metric.name, ())
    if label == "state":
        return {
            "gateway_worker_state": tuple(map(str, WorkerState)),
            "gateway_upstream_connections": CONNECTION_STATES,
        }.get(metric.name, ())
    return {
        "endpoint": tuple(map(str, Endpoint)),
        "outcome": tuple(map(str, Outcome)),
        "phase": tuple(map(str, Phase)),
        "stage": tuple(map(str, Stage)),
        "priority": (DEFAULT_PRIORITY,),
        "policy": (*map(str, Policy), OTHER),
    }.get(label, ())


SeriesKey = tuple[Metric, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """All series of one metric, which lie one behind the other: cells `begin` to `end`, `metric.width` for each."""

    metric: Metric
    keys: tuple[SeriesKey, ...]
    begin: int

    @property
    def end(self) -> int:
        """The first cell after them."""
        return self.begin + len(self.keys) * self.metric.width


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its metric, label values, and cells `offset` to `offset + metric.width`."""

    metric: Metric
    values: tuple[str, ...]
    offset: int


class Layout:
    """
    Fixed label sets turned into offsets: the same arguments give the same layout in every process.

    What is counted by tenant has no fixed label set; it is in the table `tenants` after everything else.

    Cell 0 holds a fingerprint of the layout, so that a reader with other ideas of it (another release, another
    configuration) refuses the array instead of mixing up series. All cells are float64: counts are exact up to 2**53,
    and one element type keeps an increment a single indexed store.

    Args:
        models: Configured model names; `other` is added for exchanges of no known model.
        workers: Pairs of model and worker name.
    """

    def __init__(self, models: Sequence[str], workers: Sequence[tuple[str, str]] = ()) -> None:
        self.models = tuple(dict.fromkeys((*models, OTHER)))
        self.workers = tuple(dict.fromkeys(workers))
        self._offsets: dict[tuple[str, tuple[str, ...]], int] = {}
        self.series: tuple[Series, ...] = tuple(self._place())
        self.runs = tuple(
            Run(metric, tuple((metric, one.values) for one in series), series[0].offset)
            for metric, series in ((metric, tuple(each)) for metric, each in groupby(self.series, attrgetter("metric")))
        )
        self.tenants = TenantTable(self.series[-1].offset + self.series[-1].metric.width)
        self.cells = self.tenants.end
        self.fingerprint = self._fingerprint()

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole array."""
        return self.cells * CELL_BYTES

    def offset(self, metric: Metric, *values: str) -> int:
        """First cell of a series. Raises KeyError for label values outside the layout."""
        return self._offsets[metric.name, values]

    def offsets(self, metric: Metric) -> dict[tuple[str, ...], int]:
        """First cells of all series of a metric, by label values: for who looks them up on every request."""
        return {series.values: series.offset for series in self.series if series.metric == metric}

    def _place(self) -> Iterator[Series]:
        offset = 1
        for metric in COUNTED_BY_GATEWAY_PROCESSES:
            for values in self._combinations(metric):
                self._offsets[metric.name, values] = offset
                yield Series(metric, values, offset)
                offset += metric.width

    def _combinations(self, metric: Metric) -> list[tuple[str, ...]]:
        """Label values of all series. A worker goes with its own model, and `worker` follows `model` in the labels."""
        if "worker" in metric.labels:
            rest = [closed_values(metric, label) for label in metric.labels[2:]]
            return [(*worker, *more) for worker in self.workers for more in product(*rest)]
        sets = (self.models if label == "model" else closed_values(metric, label) for label in metric.labels)
        return list(product(*sets))

    def _fingerprint(self) -> float:
        """A positive whole number below 2**48: exact as float64, and never 0, which an unwritten array holds."""
        digest = hashlib.sha256()
        for series in self.series:
            digest.update(repr((series.metric.name, series.metric.buckets, series.values)).encode())
        digest.update(repr((self.tenants, self.tenants.end, [series[1:] for series in SLOT_SERIES])).encode())
        return float(int.from_bytes(digest.digest()[:6], "big") | 1)
