"""
For every alert: what Prometheus sees, and when the alert must be quiet, fire and be quiet again.

Series are in promtool's notation (`0+60x30`: from 0 in steps of 60, thirty times; `_`: no sample), one value a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REJECTIONS = 'gateway_rejections_total{job="gateway", instance="g", model="%s", reason="%s"}'
RESTARTS = 'gateway_worker_restarts_total{job="gateway", instance="g", model="m", worker="%s", reason="%s"}'
REQUESTS = (
    'gateway_requests_total{job="gateway", instance="g", model="m", endpoint="/v1/chat/completions", outcome="%s"}'
)
STATE = 'gateway_worker_state{job="gateway", instance="g", model="m", worker="m-0", state="%s"}'
WORKER = '{job="gateway", instance="g", model="m", worker="m-0"}'
ENGINE = '{job="vllm", instance="m-0", model="m", worker="m-0", engine="0", model_name="m"}'


@dataclass(frozen=True, slots=True)
class Case:
    """
    One alert's life.

    Args:
        step: Time between two samples, and between two evaluations.
        series: Samples by series.
        quiet_at, fires_at, resolved_at: Times of day, as promtool reads them.
        labels: That the firing alert has beside its name, severity and product.
    """

    alert: str
    series: Mapping[str, str]
    quiet_at: str
    fires_at: str
    resolved_at: str
    labels: Mapping[str, str] = field(default_factory=lambda: {"model": "m", "worker": "m-0"})
    step: str = "1m"


def _availability(ok: str, failed: str) -> dict[str, str]:
    return {REQUESTS % "ok": ok, REQUESTS % "upstream_error": failed}


def _histogram(name: str, bound: str, good: str, all_: str) -> dict[str, str]:
    return {
        f'{name}_bucket{{job="gateway", instance="g", model="m", le="{bound}"}}': good,
        f'{name}_count{{job="gateway", instance="g", model="m"}}': all_,
    }


def _late_first_tokens(good: str, all_: str) -> dict[str, str]:
    return _histogram("gateway_time_to_first_token_seconds", "1.0", good, all_)


def _long_gaps(good: str, all_: str) -> dict[str, str]:
    return _histogram("gateway_inter_token_latency_seconds", "0.1", good, all_)


def _slo(name: str) -> dict[str, str]:
    return {"slo": name, "model": "m"}


# Fast: an hour of good, 40 minutes of bad, then good. The long window reaches 14.4 within it; the short one resolves.
# Slow: steps of 5 minutes, eight hours of good, four of bad, then good; the short window of 30 minutes resolves.
# Long: steps of 30 minutes, four days of good, two of bad, then good; the short window of 6 hours resolves.
BURNING = (
    Case(
        "GatewayAvailabilityBurnFast",
        _availability("0+60x60 3600+57x40 5880+60x40", "0+0x60 0+3x40 120+0x40"),
        "50m",
        "100m",
        "120m",
        _slo("availability"),
    ),
    Case(
        "GatewayAvailabilityBurnSlow",
        _availability("0+300x96 28800+294x48 42912+300x48", "0+0x96 0+6x48 288+0x48"),
        "7h",
        "12h",
        "15h",
        _slo("availability"),
        "5m",
    ),
    Case(
        "GatewayAvailabilityBurnLong",
        _availability("0+1800x192 345600+1794x96 517824+1800x96", "0+0x192 0+6x96 576+0x96"),
        "80h",
        "140h",
        "180h",
        _slo("availability"),
        "30m",
    ),
    Case(
        "GatewayTtftBurnFast",
        _late_first_tokens("0+60x60 3600+0x50 3600+60x40", "0+60x60 3600+60x90"),
        "50m",
        "108m",
        "130m",
        _slo("ttft"),
    ),
    Case(
        "GatewayTtftBurnSlow",
        _late_first_tokens("0+300x96 28800+120x48 34560+300x48", "0+300x96 28800+300x96"),
        "7h",
        "12h",
        "15h",
        _slo("ttft"),
        "5m",
    ),
    Case(
        "GatewayTtftBurnLong",
        _late_first_tokens("0+1800x192 345600+1500x96 489600+1800x96", "0+1800x384"),
        "80h",
        "140h",
        "180h",
        _slo("ttft"),
        "30m",
    ),
    Case(
        "GatewayItlBurnFast",
        _long_gaps("0+6000x60 360000+4200x40 528000+6000x40", "0+6000x140"),
        "50m",
        "100m",
        "120m",
        _slo("itl"),
    ),
    Case(
        "GatewayItlBurnSlow",
        _long_gaps("0+3000x96 288000+2700x48 417600+3000x48", "0+3000x192"),
        "7h",
        "12h",
        "15h",
        _slo("itl"),
        "5m",
    ),
    Case(
        "GatewayItlBurnLong",
        _long_gaps("0+9000x192 1728000+8700x96 2563200+9000x96", "0+9000x384"),
        "80h",
        "140h",
        "180h",
        _slo("itl"),
        "30m",
    ),
)

WORKERS = (
    Case(
        "GatewayDown",
        {'up{job="gateway", instance="g"}': "1x5 0x5 1x5"},
        "4m",
        "10m",
        "14m",
        {"job": "gateway", "instance": "g"},
    ),
    Case("GatewayAbsent", {'up{job="gateway", instance="g"}': "1x5 _x20 1x5"}, "4m", "20m", "30m", {"job": "gateway"}),
    Case("GatewayNoWorkerReady", {STATE % "ready": "1x5 0x10 1x5"}, "10m", "14m", "18m", {"model": "m"}),
    Case(
        "GatewayWorkerCrashLoop",
        {
            RESTARTS % ("m-0", "exited"): "0x9 1x1 2x1 3x40",
            # What operators ask for is no crash: this worker stays quiet.
            RESTARTS % ("m-1", "requested"): "0+1x60",
        },
        "9m",
        "15m",
        "40m",
    ),
    Case("GatewayGpuFault", {RESTARTS % ("m-0", "gpu_fault"): "0x9 1x40"}, "9m", "15m", "40m"),
    Case(
        "GatewayProcessCrashing",
        {'gateway_process_crashes_total{job="gateway", instance="g"}': "0x9 1x40"},
        "9m",
        "15m",
        "40m",
        {"instance": "g"},
    ),
    Case("GatewayWorkerFailed", {STATE % "failed": "0x5 1x5 0x5"}, "5m", "8m", "14m"),
    Case("GatewayWorkerHung", {f"gateway_worker_progress_age_seconds{WORKER}": "0x5 0+60x5 0x5"}, "7m", "10m", "14m"),
    Case(
        "GatewayWorkerMetricsDown",
        {
            f"up{ENGINE}": "1x5 0x10 1x5",
            STATE % "ready": "1x30",
            # A worker that loads has no metrics yet, and nobody needs to know.
            'up{job="vllm", instance="m-1", model="m", worker="m-1"}': "0x30",
        },
        "8m",
        "13m",
        "18m",
    ),
    Case("GatewayCircuitOpen", {f"gateway_worker_circuit_state{WORKER}": "0x5 2x10 1x5"}, "9m", "13m", "17m"),
)

SATURATION = (
    Case(
        "GatewayTurningAway",
        {
            REJECTIONS % ("m", "queue_full"): "0x9 0+6x19 114x20",
            # A tenant over its own limit is no shortage.
            REJECTIONS % ("n", "tenant_limit"): "0+60x50",
            REQUESTS % "ok": "0+60x50",
            (REQUESTS % "ok").replace('model="m"', 'model="n"'): "0+60x50",
        },
        "12m",
        "24m",
        "40m",
        {"model": "m"},
    ),
    Case(
        "GatewayQueueLong",
        {
            'gateway_queue_depth{job="gateway", instance="g", model="m", priority="normal"}': "0x5 30x10 2x10",
            f"gateway_worker_in_flight{WORKER}": "8x30",
        },
        "9m",
        "13m",
        "20m",
        {"model": "m"},
    ),
    Case(
        "GatewayKvCacheSaturated",
        {f"vllm:kv_cache_usage_perc{ENGINE}": "0.5x5 0.99x10 0.6x5", f"vllm:num_requests_waiting{ENGINE}": "3x30"},
        "9m",
        "13m",
        "18m",
    ),
    Case(
        "GatewayEngineQueue",
        {f"vllm:num_requests_waiting{ENGINE}": "0x5 40x30 0x20", f"vllm:num_requests_running{ENGINE}": "8x60"},
        "10m",
        "30m",
        "50m",
        {"model": "m"},
    ),
    Case("GatewayPreempting", {f"vllm:num_preemptions_total{ENGINE}": "0x9 0+30x10 300x20"}, "9m", "18m", "30m"),
    Case(
        "GatewayEngineStalled",
        {
            f"vllm:num_requests_running{ENGINE}": "4x30",
            f"vllm:iteration_tokens_total_count{ENGINE}": "0+600x9 5400x10 5400+600x10",
            # Idle is not hung.
            'vllm:num_requests_running{job="vllm", instance="m-1", model="m", worker="m-1"}': "0x30",
            'vllm:iteration_tokens_total_count{job="vllm", instance="m-1", model="m", worker="m-1"}': "7x30",
        },
        "8m",
        "15m",
        "24m",
    ),
)

CASES = (*BURNING, *WORKERS, *SATURATION)
