"""
The verdict on the load generator itself: a run whose client could not keep up says nothing about the server. Pure.

INVALID: 99 % of requests must be sent within max(5 ms, 5 % of the median TTFT) of their scheduled moment, and the
client must have had room: no process above its calibrated events per second, none out of processor time, none with a
late event loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadtest.ledger import Ledger
from loadtest.merging import MergedRun
from loadtest.result import ClientHealth

SEND_LAG_LIMIT_S = 0.005
SEND_LAG_SHARE_OF_TTFT = 0.05
CEILING_SHARE = 0.9
"""Of the calibrated events per second: above it, queues in the client are part of every figure."""
COMFORTABLE_SHARE = 0.7
"""Up to here the accuracy of the instrument is measured (`make bench`)."""
CPU_SHARE = 0.95
LOOP_LAG_LIMIT_S = 0.02


def send_lag_limit_s(median_ttft_s: float | None) -> float:
    """How late 99 % of requests may be."""
    return max(SEND_LAG_LIMIT_S, SEND_LAG_SHARE_OF_TTFT * (median_ttft_s or 0.0))


def client_health(
    run: MergedRun, processes: int, ceiling_per_process: float | None, window: tuple[float, float]
) -> ClientHealth:
    """Judges a finished run; send lag by the requests due in the steady window, as all other figures."""
    ledger = run.ledger
    steady = [record for record in ledger.records if window[0] <= record.scheduled_s < window[1]]
    lags = sorted(record.send_lag_s for record in steady if record.send_lag_s is not None)
    lag_p99, loop_p99 = quantile(lags, 0.99), quantile(sorted(run.loop_lags_s), 0.99)
    reasons, warnings = [], []
    limit = send_lag_limit_s(median_ttft_s(ledger))
    if lag_p99 is not None and lag_p99 > limit:
        reasons.append(
            f"requests were sent late: p99 {lag_p99 * 1e3:.1f} ms after their scheduled moment, at most "
            f"{limit * 1e3:.1f} ms are allowed"
        )
    peak = run.process_events_per_s_peak
    if ceiling_per_process is not None:
        share = peak / ceiling_per_process
        told = f"{peak:.0f} events/s in one process, {share:.0%} of the {ceiling_per_process:.0f} it can take"
        if share > CEILING_SHARE:
            reasons.append(f"client-bound: {told}")
        elif share > COMFORTABLE_SHARE:
            warnings.append(f"close to the client's own limit: {told}")
    if run.cpu_share_max > CPU_SHARE:
        reasons.append(f"client-bound: a load process used {run.cpu_share_max:.0%} of a core in its busiest second")
    if loop_p99 is not None and loop_p99 > LOOP_LAG_LIMIT_S:
        reasons.append(
            f"the client's event loop was late: p99 {loop_p99 * 1e3:.1f} ms, at most {LOOP_LAG_LIMIT_S * 1e3:.0f} ms "
            "are allowed: the machine is busy with something else, or a process has too much to do"
        )
    if reasons:
        reasons.append("to mend it: more --processes, a lower rate, or a machine with nothing else to do")
    return ClientHealth(
        ceiling_events_per_s=None if ceiling_per_process is None else ceiling_per_process * processes,
        events_per_s_peak=run.events_per_s_peak(),
        send_lag_p50_s=quantile(lags, 0.5),
        send_lag_p99_s=lag_p99,
        loop_lag_p99_s=loop_p99,
        cpu_share_max=run.cpu_share_max,
        valid=not reasons,
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        cpu_us_per_event=run.cpu_us_per_event(),
    )


def median_ttft_s(ledger: Ledger) -> float | None:
    """Of successes; None when nothing streamed."""
    return ledger.durations.ttft.percentile(0.5)


def quantile(ordered: Sequence[float], p: float) -> float | None:
    """The value at or under which a share `p` lies; the values must be sorted. None without values."""
    return ordered[max(1, math.ceil(p * len(ordered))) - 1] if ordered else None
