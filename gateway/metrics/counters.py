"""Counting in one gateway process: the exchange records and the worker gauges, written into the cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gateway.gaps import TokenGaps, bucket_of
from gateway.metrics import catalogue as c
from gateway.metrics.board import Cells
from gateway.metrics.catalogue import OTHER, Metric
from gateway.metrics.layout import Layout
from gateway.metrics.pending import PendingCells
from gateway.metrics.tenants import IN_FLIGHT, OUTPUT_TOKENS, PROMPT_TOKENS, REQUESTS, TenantSlots
from gateway.record import ExchangeRecord
from gateway.types import CircuitState, DecisionReason, Outcome, Policy, RejectionReason, Stage

# Looking up a member of an enumeration is a call of a function; these are used for every request.
_REJECTED: Final = Outcome.REJECTED
_ADMISSION: Final = Stage.ADMISSION
_CIRCUIT_VALUE: Final = {CircuitState.CLOSED: 0.0, CircuitState.HALF_OPEN: 1.0, CircuitState.OPEN: 2.0}
_POLICIES: Final = frozenset(map(str, Policy))
_DECISIONS: Final = frozenset(map(str, DecisionReason))
_REJECTIONS: Final = frozenset(map(str, RejectionReason))


def whole_microseconds(seconds: float) -> float:
    """
    As exact as the log line is: a value near a bound must be on the same side of it there and here.

    The sum of the rounded values is off by less than a microsecond for each.
    """
    return int(seconds * 1_000_000 + 0.5) / 1_000_000


class CellHistogram:
    """
    One histogram series in the cells.

    Buckets are not cumulative here (one store instead of many); the renderer adds them up. Bounds are inclusive.
    """

    __slots__ = ("_bounds", "_offset", "_pending", "_sum")

    def __init__(self, pending: PendingCells, offset: int, metric: Metric) -> None:
        self._pending = pending
        self._offset = offset
        self._bounds: list[float] = list(metric.buckets)
        self._sum = offset + len(metric.buckets) + 1

    def observe(self, seconds: float) -> None:
        """Count one value, with the next flush of the cells."""
        self._pending.add(self._offset + bucket_of(self._bounds, seconds), 1.0)
        self._pending.add(self._sum, seconds)

    def add(self, counts: list[int], total_s: float) -> None:
        """Count many values at once: how many fell into each bucket, and their sum."""
        cells = self._pending.cells
        for bucket, count in enumerate(counts):
            if count:
                cells[self._offset + bucket] += float(count)
        cells[self._sum] += total_s


class SlotCounters:
    """
    What one gateway process counts, and its worker gauges: a recorder (`proxy.interfaces.Recorder`) that counts at
    once. In a running process `GatheredCounters` stands in front of it.

    `started` and `finished` must name the same model and tenant, or the in-flight counts drift apart.

    Args:
        layout: Label sets.
        cells: The process's own cells (`Board.cells`); nobody else writes them.
        request_line: Called with every finished record (the log's canonical line).
    """

    def __init__(
        self, layout: Layout, cells: Cells, request_line: Callable[[ExchangeRecord], None] | None = None
    ) -> None:
        self._layout = layout
        self._cells = cells
        self._pending = PendingCells(cells)
        self._request_line = request_line
        self._models = frozenset(layout.models)
        self._requests = layout.offsets(c.REQUESTS)
        self._retries = layout.offsets(c.RETRIES)
        self._disconnects = layout.offsets(c.DISCONNECTS)
        self._rejections = layout.offsets(c.REJECTIONS)
        self._decisions = layout.offsets(c.ROUTING_DECISIONS)
        self._queue_depth = {model: offset for (model, _), offset in layout.offsets(c.QUEUE_DEPTH).items()}
        self._queue_wait = {
            model: CellHistogram(self._pending, offset, c.QUEUE_WAIT)
            for (model, _), offset in layout.offsets(c.QUEUE_WAIT).items()
        }
        self._in_flight = {model: layout.offset(c.IN_FLIGHT, model) for model in layout.models}
        self._inter_token = {
            model: TokenGaps(c.INTER_TOKEN_LATENCY.buckets, histogram.add)
            for model, histogram in self._by_model(c.INTER_TOKEN_LATENCY).items()
        }
        self._first_token = self._by_model(c.TIME_TO_FIRST_TOKEN)
        self._per_token = self._by_model(c.TIME_PER_OUTPUT_TOKEN)
        self._prompt_tokens = {model: layout.offset(c.PROMPT_TOKENS, model) for model in layout.models}
        self._cached_tokens = {model: layout.offset(c.CACHED_PROMPT_TOKENS, model) for model in layout.models}
        self._output_tokens = {model: layout.offset(c.OUTPUT_TOKENS, model) for model in layout.models}
        self._unconfirmed = {model: layout.offset(c.UNCONFIRMED_TOKEN_EVENTS, model) for model in layout.models}
        self._durations = {
            values: CellHistogram(self._pending, offset, c.DURATION)
            for values, offset in layout.offsets(c.DURATION).items()
        }
        self._overheads = {
            values[0]: CellHistogram(self._pending, offset, c.OVERHEAD)
            for values, offset in layout.offsets(c.OVERHEAD).items()
        }
        self._worker_in_flight = {worker: offset for (_, worker), offset in layout.offsets(c.WORKER_IN_FLIGHT).items()}
        self._worker_circuit = {
            worker: offset for (_, worker), offset in layout.offsets(c.WORKER_CIRCUIT_STATE).items()
        }
        self._connections = {
            (worker, state): offset for (_, worker, state), offset in layout.offsets(c.UPSTREAM_CONNECTIONS).items()
        }
        self._tenants = TenantSlots(layout.tenants, cells)
        self._lines_dropped = layout.offset(c.LOG_LINES_DROPPED)
        self._spans_dropped = layout.offset(c.TRACE_SPANS_DROPPED)

    def started(self, model: str, tenant: str | None) -> None:
        """An exchange of `model` ("" when unknown) and of `tenant` (see `ExchangeRecord`) is in flight."""
        cells = self._cells
        cells[self._in_flight[model if model in self._models else OTHER]] += 1.0
        cells[(self._tenants.known.get(tenant) or self._tenants.claim(tenant)) + IN_FLIGHT] += 1.0

    def inter_token(self, model: str) -> TokenGaps:
        """Where the gaps of a stream of `model` are counted; they are in the cells soon, with its end at the latest."""
        return self._inter_token.get(model) or self._inter_token[OTHER]

    def finished(self, record: ExchangeRecord) -> None:
        """Count an exchange that was `started`, and hand it to the log."""
        self.count(record)
        self.flush()

    def count(self, record: ExchangeRecord) -> None:
        """As `finished`, but in the cells only with the next `flush`."""
        pending = self._pending
        model = record.model if record.model in self._models else OTHER
        pending.add(self._in_flight[model], -1.0)
        pending.add(self._requests[model, record.endpoint, record.outcome], 1.0)
        self._times(record, model)
        slot = self._tenants.known.get(record.tenant) or self._tenants.claim(record.tenant)
        pending.add(slot + IN_FLIGHT, -1.0)
        pending.add(slot + REQUESTS[record.outcome], 1.0)
        self._tokens(record, model, slot)
        for reason in record.retries:
            pending.add(self._retries[model, reason], 1.0)
        if record.disconnect is not None:
            pending.add(self._disconnects[model, record.disconnect], 1.0)
        if record.outcome is _REJECTED:
            code = record.rejection or record.error_code
            pending.add(self._rejections[model, code if code in _REJECTIONS else OTHER], 1.0)
        if record.policy:
            policy = record.policy if record.policy in _POLICIES else OTHER
            reason_ = record.decision if record.decision in _DECISIONS else OTHER
            pending.add(self._decisions[model, policy, reason_], 1.0)
        if self._request_line is not None:
            self._request_line(record)

    def flush(self) -> None:
        """Bring what was counted into the cells."""
        for gaps in self._inter_token.values():
            gaps.flush()
        self._pending.flush()

    def queue_depth(self, model: str, waiting: int) -> None:
        """Set how many requests for a model wait in this process."""
        self._cells[self._queue_depth[model if model in self._models else OTHER]] = float(waiting)

    def worker_in_flight(self, worker: str, attempts: int) -> None:
        """Set how many attempts this process has in flight on a worker. A worker outside the layout has no gauge."""
        offset = self._worker_in_flight.get(worker)
        if offset is not None:
            self._cells[offset] = float(attempts)

    def worker_circuit(self, worker: str, state: CircuitState) -> None:
        """Set a worker's circuit state. A worker outside the layout has no gauge."""
        offset = self._worker_circuit.get(worker)
        if offset is not None:
            self._cells[offset] = _CIRCUIT_VALUE[state]

    def connections(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Set the upstream connections of every worker: in use and idle, by worker; none for workers left out."""
        for (worker, state), offset in self._connections.items():
            in_use, idle = counts.get(worker, (0, 0))
            self._cells[offset] = float(in_use if state == "in_use" else idle)

    def lost(self, log_lines: int, trace_spans: int) -> None:
        """Set how many log lines and spans this process has lost so far."""
        self._cells[self._lines_dropped] = float(log_lines)
        self._cells[self._spans_dropped] = float(trace_spans)

    def _times(self, record: ExchangeRecord, model: str) -> None:
        if record.duration_s is not None:
            self._durations[model, record.endpoint].observe(whole_microseconds(record.duration_s))
        if record.stream:
            if record.ttft_s is not None:
                self._first_token[model].observe(whole_microseconds(record.ttft_s))
            if record.tpot_s is not None:
                self._per_token[model].observe(whole_microseconds(record.tpot_s))
        waited_s = record.stages.get(_ADMISSION, 0.0)
        if waited_s or record.attempts:
            self._queue_wait[model].observe(whole_microseconds(waited_s))
        for stage, seconds in record.stages.items():
            self._overheads[stage].observe(whole_microseconds(seconds))

    def _tokens(self, record: ExchangeRecord, model: str, slot: int) -> None:
        pending = self._pending
        if record.prompt_tokens:
            prompt = float(record.prompt_tokens)
            pending.add(self._prompt_tokens[model], prompt)
            pending.add(slot + PROMPT_TOKENS, prompt)
        if record.cached_tokens:
            pending.add(self._cached_tokens[model], float(record.cached_tokens))
        if record.output_tokens:
            output = float(record.output_tokens)
            if record.output_tokens_estimated:
                pending.add(self._unconfirmed[model], output)
            else:
                pending.add(self._output_tokens[model], output)
                pending.add(slot + OUTPUT_TOKENS, output)

    def _by_model(self, metric: Metric) -> dict[str, CellHistogram]:
        return {
            model: CellHistogram(self._pending, self._layout.offset(metric, model), metric)
            for model in self._layout.models
        }
