"""Counting in cells: exact against a naive model, whole after deaths, and one total out of many processes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import ControlUnavailable
from gateway.log import request_fields
from gateway.metrics import Board, Layout, SlotCounters, Totals, render
from gateway.metrics.catalogue import LOG_LINES_DROPPED
from gateway.metrics.counters import whole_microseconds
from gateway.record import ExchangeRecord
from gateway.types import (
    CircuitState,
    DecisionReason,
    Endpoint,
    Family,
    Outcome,
    Phase,
    Policy,
    RejectionReason,
    RetryReason,
    Stage,
)

MODELS = ("llama", "qwen")
WORKERS = (("llama", "llama-0"), ("llama", "llama-1"), ("qwen", "qwen-0"))

seconds = st.floats(min_value=0, max_value=5000, allow_nan=False)
tokens = st.none() | st.integers(min_value=0, max_value=200_000)
records = st.builds(
    ExchangeRecord,
    request_id=st.just("r"),
    endpoint=st.sampled_from(Endpoint),
    family=st.just(Family.CHAT),
    started_at_s=st.just(0.0),
    model=st.sampled_from(("llama", "qwen", "", "what the client wrote")),
    tenant=st.sampled_from((None, "", "acme", "batch")),
    stream=st.booleans(),
    outcome=st.sampled_from(Outcome),
    attempts=st.integers(0, 2),
    retries=st.lists(st.sampled_from(RetryReason), max_size=3),
    disconnect=st.none() | st.sampled_from(Phase),
    duration_s=st.none() | seconds,
    ttft_s=st.none() | seconds,
    tpot_s=st.none() | seconds,
    prompt_tokens=tokens,
    cached_tokens=tokens,
    output_tokens=tokens,
    policy=st.sampled_from(("", *Policy, "unheard of")),
    decision=st.sampled_from((*DecisionReason, "unheard of")),
    error_code=st.sampled_from(("", *RejectionReason, "unheard of")),
    stages=st.dictionaries(st.sampled_from(Stage), seconds),
)


@pytest.fixture
def totals() -> Iterator[Totals]:
    """A supervisor's totals; what a test creates in them is retired at its end."""
    totals = Totals()
    yield totals
    for board in list(totals._boards):
        totals.retire(board)


def exposed(totals: Totals, **more: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of the exposition that is not zero, parsed by the client library."""
    text = render(totals.merged(), **more).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.value
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def naive(finished: list[ExchangeRecord]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The same records counted the obvious way, without buckets."""
    counts: Counter[tuple[str, frozenset[tuple[str, str]]]] = Counter()
    for record in finished:
        model = record.model if record.model in MODELS else "other"
        counts[key("gateway_requests_total", model=model, endpoint=record.endpoint, outcome=record.outcome)] += 1
        for reason in record.retries:
            counts[key("gateway_retries_total", model=model, reason=reason)] += 1
        if record.disconnect is not None:
            counts[key("gateway_disconnects_total", model=model, phase=record.disconnect)] += 1
        if record.outcome is Outcome.REJECTED:
            known = record.error_code in list(RejectionReason)
            counts[key("gateway_rejections_total", model=model, reason=record.error_code if known else "other")] += 1
        if record.policy:
            policy = record.policy if record.policy in list(Policy) else "other"
            reason_ = record.decision if record.decision in list(DecisionReason) else "other"
            counts[key("gateway_routing_decisions_total", model=model, policy=policy, reason=reason_)] += 1
        for name, value in (
            ("gateway_prompt_tokens_total", record.prompt_tokens),
            ("gateway_cached_prompt_tokens_total", record.cached_tokens),
            ("gateway_output_tokens_total", record.output_tokens),
        ):
            counts[key(name, model=model)] += value or 0
        if record.tenant is not None:
            tenant = record.tenant or "anonymous"
            counts[key("gateway_tenant_requests_total", tenant=tenant, outcome=record.outcome)] += 1
            counts[key("gateway_tenant_prompt_tokens_total", tenant=tenant)] += record.prompt_tokens or 0
            counts[key("gateway_tenant_output_tokens_total", tenant=tenant)] += record.output_tokens or 0
        if record.duration_s is not None:
            counts[key("gateway_request_duration_seconds_count", model=model, endpoint=record.endpoint)] += 1
        if record.stream and record.ttft_s is not None:
            counts[key("gateway_time_to_first_token_seconds_count", model=model)] += 1
        if record.stream and record.tpot_s is not None:
            counts[key("gateway_time_per_output_token_seconds_count", model=model)] += 1
        if record.attempts or record.stages.get(Stage.ADMISSION):
            counts[key("gateway_queue_wait_seconds_count", model=model, priority="default")] += 1
        for stage in record.stages:
            counts[key("gateway_overhead_seconds_count", stage=stage)] += 1
    return {name: count for name, count in counts.items() if count}


@given(st.lists(records, max_size=30), st.integers(min_value=0, max_value=30))
@settings(max_examples=40, deadline=None)
def test_two_processes_and_a_dead_one_count_what_a_naive_count_gives(finished: list[ExchangeRecord], cut: int) -> None:
    """Records shared out over two processes, one of which dies: every counter equals the naive count."""
    totals = Totals()
    layout = Layout(MODELS, WORKERS)
    first, second = totals.create(layout), totals.create(layout)
    for board, share in ((first, finished[:cut]), (second, finished[cut:])):
        counters = SlotCounters(layout, board.cells)
        for record in share:
            counters.started(record.model, record.tenant)
            counters.finished(record)

    totals.retire(first)
    samples = exposed(totals)
    totals.retire(second)

    plain = {name: value for name, value in samples.items() if not name[0].endswith(("_bucket", "_sum"))}
    assert naive(finished) == plain


@given(st.lists(seconds, max_size=50))
@settings(max_examples=40, deadline=None)
def test_buckets_are_cumulative_and_their_bounds_inclusive(gaps: list[float]) -> None:
    """Each `le` bucket holds exactly the values not above it; count and sum are those of the values."""
    totals = Totals()
    layout = Layout(MODELS)
    board = totals.create(layout)
    histogram = SlotCounters(layout, board.cells).inter_token("qwen")
    for number, gap in enumerate(gaps):
        histogram.observe(gap, number / 15)
    histogram.flush()

    text = render(totals.merged()).decode()
    totals.retire(board)

    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("gateway_inter_token_latency_seconds") and sample.labels["model"] == "qwen"
    ]
    for sample in samples:
        if sample.name.endswith("_bucket"):
            assert sum(gap <= float(sample.labels["le"]) for gap in gaps) == sample.value
        elif sample.name.endswith("_count"):
            assert len(gaps) == sample.value
        else:
            assert pytest.approx(sum(gaps)) == sample.value


def test_queue_depth_is_of_all_processes_and_waits_of_zero_count(totals: Totals) -> None:
    """Depths add up and go back to zero; a request that did not wait is observed as such, one never admitted is not."""
    layout = Layout(MODELS)
    boards = [totals.create(layout) for _ in range(2)]
    counters = [SlotCounters(layout, board.cells) for board in boards]
    for waiting, each in zip((3, 4), counters, strict=True):
        each.queue_depth("llama", waiting)
    assert 7 == exposed(totals)[key("gateway_queue_depth", model="llama", priority="default")]
    for each in counters:
        each.queue_depth("llama", 0)
    for attempts, stages in ((1, {}), (1, {Stage.ADMISSION: 2.0}), (0, {Stage.ADMISSION: 4.0}), (0, {})):
        record = ExchangeRecord("r", Endpoint.TOKENIZE, Family.PLAIN, 0.0, "llama", attempts=attempts, stages=stages)
        counters[0].started("llama", "")
        counters[0].finished(record)

    samples = exposed(totals)
    assert key("gateway_queue_depth", model="llama", priority="default") not in samples
    for suffix, expected in (("count", 3), ("sum", 6)):
        name = f"gateway_queue_wait_seconds_{suffix}"
        assert expected == samples[key(name, model="llama", priority="default")]
    bucket = key("gateway_queue_wait_seconds_bucket", model="llama", priority="default", le="0.001")
    assert 1 == samples[bucket]


def test_a_value_on_a_bound_falls_into_its_bucket(totals: Totals) -> None:
    """`le` means less than or equal."""
    layout = Layout(MODELS)
    board = totals.create(layout)
    histogram = SlotCounters(layout, board.cells).inter_token("llama")
    histogram.observe(0.01, 1.0)
    histogram.flush()

    samples = exposed(totals)

    assert key("gateway_inter_token_latency_seconds_bucket", model="llama", le="0.01") in samples
    assert key("gateway_inter_token_latency_seconds_bucket", model="llama", le="0.0075") not in samples


def test_counters_survive_their_process_and_gauges_do_not(totals: Totals) -> None:
    """A process that dies with an exchange in flight leaves its totals, and nothing in flight."""
    layout = Layout(MODELS, WORKERS)
    board = totals.create(layout)
    counters = SlotCounters(layout, board.cells)
    counters.started("llama", "")
    counters.finished(_record(Outcome.OK))
    counters.started("llama", "")
    counters.worker_in_flight("llama-0", 1)
    counters.worker_circuit("llama-0", CircuitState.OPEN)
    before = exposed(totals)

    totals.retire(board)
    totals.retire(board)
    after = exposed(totals)

    requests = key("gateway_requests_total", model="llama", endpoint="/v1/chat/completions", outcome="ok")
    in_flight = key("gateway_requests_in_flight", model="llama")
    assert (before[requests], before[in_flight]) == (1, 1)
    assert after[requests] == 1
    assert [name for name in after if name[0] in ("gateway_requests_in_flight", "gateway_worker_in_flight")] == []
    assert [name for name in after if name[0] == "gateway_worker_circuit_state"] == []


def test_totals_of_two_configurations_add_up_by_name(totals: Totals) -> None:
    """After a reload with other models no count moves to another series and none is lost."""
    old = Layout(("llama", "qwen"))
    new = Layout(("gemma", "llama"))
    for layout in (old, new):
        counters = SlotCounters(layout, totals.create(layout).cells)
        for model in ("llama", "qwen"):
            counters.started(model, "")
            counters.finished(_record(Outcome.OK, model=model))

    samples = exposed(totals)

    labels = {"endpoint": "/v1/chat/completions", "outcome": "ok"}
    assert samples[key("gateway_requests_total", model="llama", **labels)] == 2
    assert samples[key("gateway_requests_total", model="qwen", **labels)] == 1
    assert samples[key("gateway_requests_total", model="other", **labels)] == 1
    assert key("gateway_requests_total", model="gemma", **labels) not in samples


def test_worker_gauges_add_up_and_the_worst_circuit_shows(totals: Totals) -> None:
    """In-flight attempts are summed over processes; an open circuit in one of them is not averaged away."""
    layout = Layout(MODELS, WORKERS)
    one = SlotCounters(layout, totals.create(layout).cells)
    two = SlotCounters(layout, totals.create(layout).cells)
    one.worker_in_flight("llama-1", 2)
    two.worker_in_flight("llama-1", 3)
    two.worker_in_flight("a worker nobody configured", 9)
    one.worker_circuit("llama-1", CircuitState.OPEN)
    two.worker_circuit("llama-1", CircuitState.HALF_OPEN)

    samples = exposed(totals)

    assert samples[key("gateway_worker_in_flight", model="llama", worker="llama-1")] == 5
    assert samples[key("gateway_worker_circuit_state", model="llama", worker="llama-1")] == 2
    assert not [name for name in samples if "nobody" in str(name)]


def test_connections_are_told_by_worker_and_fall_back_to_zero(totals: Totals) -> None:
    """Summed over processes; a worker that a process has no connection to counts as zero, not as before."""
    layout = Layout(MODELS, WORKERS)
    one = SlotCounters(layout, totals.create(layout).cells)
    two = SlotCounters(layout, totals.create(layout).cells)
    one.connections({"llama-0": (2, 5), "a worker nobody configured": (9, 9)})
    two.connections({"llama-0": (1, 0), "qwen-0": (0, 4)})
    before = exposed(totals)

    one.connections({})
    after = exposed(totals)

    name = "gateway_upstream_connections"
    assert 3 == before[key(name, model="llama", worker="llama-0", state="in_use")]
    assert 5 == before[key(name, model="llama", worker="llama-0", state="idle")]
    assert 4 == before[key(name, model="qwen", worker="qwen-0", state="idle")]
    assert 1 == after[key(name, model="llama", worker="llama-0", state="in_use")]
    assert key(name, model="llama", worker="llama-0", state="idle") not in after
    assert not [sample for sample in before if "nobody" in str(sample)]


def test_losses_of_all_processes_and_of_the_supervisor_add_up(totals: Totals) -> None:
    """Log lines and spans: each process tells its own total, the dead ones' stay, the supervisor's is added."""
    layout = Layout(MODELS)
    dead = totals.create(layout)
    SlotCounters(layout, dead.cells).lost(2, 30)
    totals.retire(dead)
    living = SlotCounters(layout, totals.create(layout).cells)
    living.lost(3, 0)
    living.lost(4, 1)

    samples = exposed(totals, more={(LOG_LINES_DROPPED, ()): [10.0]})

    assert 16 == samples[key("gateway_log_lines_dropped_total")]
    assert 31 == samples[key("gateway_trace_spans_dropped_total")]


@given(seconds)
def test_values_are_counted_as_exactly_as_they_are_logged(value: float) -> None:
    """Of a histogram's value and the log line's, neither can lie beyond a bucket's bound without the other."""
    logged = request_fields(ExchangeRecord("r", Endpoint.SCORE, Family.PLAIN, 0.0, duration_s=value))["duration_ms"]

    assert round(whole_microseconds(value) * 1e6) == round(float(str(logged)) * 1e3)


def test_a_client_s_string_never_becomes_a_label(totals: Totals) -> None:
    """Model, error code, policy and decision outside the closed sets are counted as `other`."""
    layout = Layout(MODELS)
    counters = SlotCounters(layout, totals.create(layout).cells)
    record = _record(Outcome.REJECTED, model='evil"} 1')
    record.error_code = record.policy = record.decision = "evil"
    counters.started(record.model, record.tenant)
    counters.finished(record)

    text = render(totals.merged()).decode()

    assert "evil" not in text
    assert 'gateway_rejections_total{model="other",reason="other"} 1.0' in text


def test_the_log_gets_each_record_once_after_it_was_counted(totals: Totals) -> None:
    """The canonical line and the metrics have one source."""
    layout = Layout(MODELS)
    lines: list[ExchangeRecord] = []
    counters = SlotCounters(layout, totals.create(layout).cells, lines.append)
    record = _record(Outcome.OK)

    counters.started("llama", "")
    counters.finished(record)

    assert [record] == lines


def test_a_board_is_shared_by_its_descriptor(totals: Totals) -> None:
    """What a process writes through its own mapping of the descriptor, the supervisor reads."""
    layout = Layout(MODELS)
    board = totals.create(layout)
    attached = Board.attach(Layout(MODELS), os.dup(board.fd))
    SlotCounters(layout, attached.cells).started("llama", "")
    attached.close()
    attached.close()

    assert exposed(totals)[key("gateway_requests_in_flight", model="llama")] == 1


@pytest.mark.parametrize("models", [("llama", "gemma"), ("llama", "qwen", "gemma")])
def test_a_board_of_another_layout_is_refused(totals: Totals, models: tuple[str, ...]) -> None:
    """Same size or not: a process that would mix up series does not start."""
    board = totals.create(Layout(MODELS))
    fd = os.dup(board.fd)

    with pytest.raises(ControlUnavailable, match="same release"):
        Board.attach(Layout(models), fd)

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_board_s_cells_are_eight_bytes_apart_and_aligned() -> None:
    """The promise that a reader never sees half a number rests on it."""
    board = Board.create(Layout(MODELS))
    try:
        assert (8, 8 * board.layout.cells) == (board.cells.itemsize, board.cells.nbytes)
    finally:
        board.close()


def _record(outcome: Outcome, model: str = "llama") -> ExchangeRecord:
    return ExchangeRecord("r", Endpoint.CHAT_COMPLETIONS, Family.CHAT, 0.0, model=model, outcome=outcome)
