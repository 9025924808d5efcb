"""A run that never happened, with everything a report has to show: load steps, failures, a stall, server figures."""

from __future__ import annotations

import random

from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome, UnsentReason
from loadtest.result import ClientHealth, RunResult, ServerSample, TimelineSample

HEALTHY = ClientHealth(9400.0, 1210.0, 0.0002, 0.0011, 0.0009, 0.31, valid=True)
INVALID = ClientHealth(
    9400.0,
    8100.0,
    0.002,
    0.031,
    0.02,
    0.97,
    valid=False,
    reasons=("expected a send lag p99 of at most 5.2 ms, found 31 ms: run it with --processes 2",),
)


def invented_run(
    *, seconds: int = 40, seed: int = 1, slower: float = 1.0, health: ClientHealth = HEALTHY, failures: bool = True
) -> RunResult:
    """
    An open loop whose rate rises in four steps; `slower` stretches all durations.

    In the last step the server queues, refuses some and breaks a few; half-way through everything stalls for a second.
    """
    rng = random.Random(seed)
    ledger, at, number = Ledger(), 0.0, 0
    while at < seconds:
        step = int(4 * at / seconds)
        at += rng.expovariate(3.0 + 3.0 * step)
        if at < seconds:
            ledger.schedule()
            ledger.settle(_record(rng, number, at, step, seconds / 2, slower, failures))
        number += 1
    samples = [_sample(ledger, second) for second in range(1, seconds + 5)]
    return RunResult(
        settings={
            "scenario": "chat",
            "target": "http://127.0.0.1:8000",
            "model": "SmolLM2-135M-Instruct",
            "started": "2026-11-29T21:40:00+0000",
            "arrivals": "steps",
            "rate": "3, 6, 9, 12",
            "duration_s": float(seconds),
            "warmup_s": 2.0,
            "seed": seed,
            "connection_policy": "kept alive, one per request in flight, at most 1000",
        },
        ledger=ledger,
        timeline=samples,
        server=[_server(sample) for sample in samples],
        health=health,
        window=(2.0, float(seconds)),
        objectives={"ttft_p95": 0.5, "e2e_p95": 3.0, "gaps_p99": 0.03, "attainment": 0.9},
    )


def _record(
    rng: random.Random, number: int, at: float, step: int, stall_s: float, slower: float, failures: bool
) -> RequestRecord:
    identity, kind = f"lt-{number}", ("chat", "chat", "long")[number % 3]
    tenant = ("acme", "globex")[number % 2]
    sent = at + rng.uniform(0.0001, 0.0006)
    common = {"request_id": identity, "scheduled_s": at, "kind": kind, "tenant": tenant}
    luck = rng.random() if failures and step == 3 else 1.0
    if luck < 0.02:
        return RequestRecord(**common, outcome=Outcome.UNSENT, detail=UnsentReason.IN_FLIGHT_LIMIT, ended_s=at)  # type: ignore[arg-type]
    if luck < 0.06:
        return RequestRecord(  # type: ignore[misc]
            **common,  # type: ignore[arg-type]
            outcome=Outcome.HTTP_STATUS,
            sent_s=sent,
            status=503,
            detail='HTTP 503: {"error": {"message": "no worker <available>", "code": "no_worker_available"}}',
            ended_s=sent + 0.01,
        )
    ttft = slower * rng.lognormvariate(-2.3 + 0.25 * step + (0.6 if kind == "long" else 0.0), 0.25)
    tokens = rng.randint(24, 64)
    gaps = [slower * rng.lognormvariate(-3.9 + 0.1 * step, 0.18) for _ in range(tokens - 1)]
    clock = sent + ttft
    for k, gap in enumerate(gaps):
        if clock < stall_s <= clock + gap + 0.2:
            gaps[k] = gap + 1.0
        clock += gaps[k]
    broken = luck < 0.09
    if broken:
        gaps = gaps[: tokens // 2]
    last = sent + ttft + sum(gaps)
    return RequestRecord(  # type: ignore[misc]
        **common,  # type: ignore[arg-type]
        outcome=Outcome.TRUNCATED if broken else Outcome.OK,
        detail="the stream ended without [DONE] after 20 token events" if broken else "",
        status=200,
        sent_s=sent,
        first_token_s=sent + ttft,
        first_visible_s=sent + ttft,
        last_token_s=last,
        ended_s=last + 0.001,
        gaps_s=tuple(gaps),
        other_choices_s=(sent + ttft - 0.0004, last + 0.0002),
        token_events=len(gaps) + 1,
        prompt_tokens=None if broken else 180,
        cached_tokens=None if broken else 32,
        output_tokens=None if broken else tokens,
        finish_reason=None if broken else "length",
    )


def _sample(ledger: Ledger, second: int) -> TimelineSample:
    due = [record for record in ledger.records if record.scheduled_s <= second]
    ended = [record for record in due if record.ended_s <= second]
    ok = [record for record in ended if record.outcome is Outcome.OK]
    unsent = sum(record.outcome is Outcome.UNSENT for record in ended)
    return TimelineSample(
        at_s=float(second),
        scheduled=len(due),
        sent=sum(record.sent_s is not None and record.sent_s <= second for record in due),
        ok=len(ok),
        failed=len(ended) - len(ok) - unsent,
        unsent=unsent,
        in_flight=len(due) - len(ended),
        token_events=sum(at <= second for record in due for at in record.token_times_s()),
        output_tokens=sum(record.output_tokens or 0 for record in ok),
        ttft_p50_s=None,
        send_lag_max_s=max((record.send_lag_s or 0.0 for record in due), default=0.0),
    )


def _server(sample: TimelineSample) -> ServerSample:
    running = min(sample.in_flight, 16)
    return ServerSample(
        at_s=sample.at_s - 0.2,
        running=running,
        waiting=sample.in_flight - running,
        kv_cache_usage=min(1.0, sample.in_flight / 24),
        preemptions=max(0, sample.ok - 300) // 20,
        prefix_hits=32.0 * sample.ok,
        prefix_queries=180.0 * sample.ok,
    )
