"""Books of several processes: exact whatever the order of reports, and passed between processes without loss."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import msgspec
import pytest

from loadtest.arrivals import Arrivals
from loadtest.ledger import Ledger, RequestRecord
from loadtest.merging import MergedRun
from loadtest.outcomes import Outcome, UnsentReason
from loadtest.plan import RunPlan
from loadtest.process_report import ProcessReport
from loadtest.scenarios.base import Context
from loadtest.scenarios.text import TokenScale
from loadtest.target import Target

EMPTY = ProcessReport(
    process=0,
    scheduled=0,
    sent=0,
    token_events=0,
    output_tokens=0,
    users=0,
    ttfts_s=[],
    send_lag_max_s=0.0,
    loop_lags_s=[],
    cpu_s=0.0,
    cpu_share=0.0,
    events_per_s=0.0,
    records=[],
)


def record(number: int, outcome: Outcome = Outcome.OK) -> RequestRecord:
    detail = UnsentReason.RUN_ENDED if outcome is Outcome.UNSENT else ""
    sent_s = None if outcome is Outcome.UNSENT else number + 0.1
    return RequestRecord(
        *(f"r{number}", float(number), outcome, sent_s),
        first_token_s=number + 1 / 3,
        last_token_s=number + 2 / 3,
        gaps_s=array("d", [1 / 3]),
        token_events=2,
        output_tokens=2,
        detail=detail,
    )


@pytest.mark.parametrize("seed", range(5))
def test_merged_books_equal_those_of_one_process(seed: int) -> None:
    """Two processes, reports of random sizes in random order, through their bytes: counts, histograms, records."""
    chance = random.Random(seed)
    outcomes = [Outcome.OK, Outcome.OK, Outcome.RESET, Outcome.CANCELLED, Outcome.UNSENT]
    records = [record(n, chance.choice(outcomes)) for n in range(100)]
    merged, done = MergedRun(), [0, 0]
    queues = [records[0::2], records[1::2]]
    while any(queues):
        process = chance.choice([p for p in (0, 1) if queues[p]])
        size = chance.randint(1, 20)
        batch, queues[process] = queues[process][:size], queues[process][size:]
        done[process] += len(batch)
        running = min(3, len(queues[process]))
        report = replace(EMPTY, process=process, scheduled=done[process] + running, records=batch)
        merged.take(ProcessReport.from_bytes(report.to_bytes()))
        assert merged.ledger.balanced

    together = Ledger.of(sorted(records, key=lambda r: r.request_id))
    merged.ledger.records.sort(key=lambda r: r.request_id)
    assert merged.ledger.in_flight == 0
    assert [r.to_json() for r in together.records] == [r.to_json() for r in merged.ledger.records]
    assert {k: v for k, v in together.to_json().items() if k != "histograms"} == {
        k: v for k, v in merged.ledger.to_json().items() if k != "histograms"
    }
    assert together.durations.gaps.buckets == merged.ledger.durations.gaps.buckets


def test_a_sample_adds_the_processes_and_forgets_what_it_has_shown() -> None:
    """Cumulative counts are summed, what happened since the last sample is shown once."""
    run = MergedRun()
    run.take(replace(EMPTY, scheduled=2, sent=2, token_events=7, ttfts_s=[0.1, 0.3], send_lag_max_s=0.002, users=2))
    run.take(replace(EMPTY, process=1, scheduled=1, sent=1, token_events=5, ttfts_s=[0.2], users=1, cpu_share=0.5))
    first, second = run.sample(1.0, closed_loop=True), run.sample(2.0, closed_loop=False)

    assert (first.scheduled, first.sent, first.token_events, first.in_flight, first.users) == (3, 3, 12, 3, 3)
    assert (first.ttft_p50_s, first.send_lag_max_s) == (0.2, 0.002)
    assert (second.token_events, second.ttft_p50_s, second.send_lag_max_s, second.users) == (12, None, 0.0, None)
    assert (run.events_per_s_peak(), run.cpu_share_max) == (12, 0.5)


def test_last_reports_are_counted_by_process() -> None:
    """The run waits for every one of them; Locust's own counts come with them."""
    run = MergedRun()
    for process in (0, 1):
        run.take(replace(EMPTY, process=process, final=True, locust_requests=3, locust_failures=1))

    assert ({0, 1}, 6, 2) == (run.finished, run.locust_requests, run.locust_failures)


def test_a_plan_reaches_its_process_whole() -> None:
    """As one line of JSON, infinite and binary things excluded by its types."""
    plan = RunPlan(
        Target("127.0.0.1", 1, prefix="/x"),
        "chat",
        Context("m", TokenScale(words=("a", "b")), "salt", 4096, True),
        30.0,
        {"prompt_tokens": "5"},
        arrivals=Arrivals("trace", trace_s=(0.0, 1.5)),
        api_key="k",
    )
    line = msgspec.json.encode(plan)

    assert plan == msgspec.json.decode(line, type=RunPlan)
    assert b"\n" not in line


def test_the_in_flight_limit_is_shared_out_exactly() -> None:
    """Of 10 over 3 processes; users of a closed loop limit themselves."""
    plan = RunPlan(Target("h", 1), "chat", Context("m", TokenScale()), 1.0, processes=3, max_in_flight=10)

    assert [4, 3, 3] == [plan.in_flight_limit(process) for process in range(3)]
    assert 50 == replace(plan, users=50).in_flight_limit(0)
