"""
The same run by the definitions of vLLM's own benchmark (`vllm bench serve --backend openai-chat`, 0.32), pure.

Read in `vllm/benchmarks/serve.py: calculate_metrics` and `lib/endpoint_request_func.py`. They differ from ours:

* TTFT ends at the first event with a choice, so a role event without a token ends it.
* ITL is the gap between any two events with a choice, role and finish events included, one sample per event however
  many tokens it carries; pooled over requests.
* TPOT = (latency - TTFT) / (output tokens - 1), latency ending at the last event with a choice.
* A 200 stream with one such event is a success, also when it reports an error, is cut short or has no token.
* Rates divide by the whole time from the first request to the last answer, ramp and tail included.
* Percentiles interpolate between two samples; the standard deviation is that of a population.
* Output tokens per second at their peak are events, counted in whole seconds after the first start.

Ours that have no counterpart are left out: requests never sent, and those that the scenario cancelled. A request starts
here when its first byte is sent; vLLM's client starts before it has a connection.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from loadtest.ledger import RequestRecord
from loadtest.outcomes import Outcome

PERCENTILES = (50.0, 90.0, 95.0, 99.0)

_SUCCESSES = frozenset({Outcome.OK, Outcome.IN_BAND_ERROR, Outcome.TRUNCATED, Outcome.ABORTED, Outcome.TOKENLESS})


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds: mean, median, standard deviation, and percentiles by their number."""

    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class VllmScore:
    """What vLLM's benchmark would print; names as there."""

    completed: int
    failed: int
    duration_s: float
    total_input: int
    total_output: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2el_ms: Spread
    max_output_tokens_per_s: float
    max_concurrent_requests: int


@dataclass(frozen=True, slots=True)
class _Output:
    """One success as vLLM's client would have seen it."""

    start_s: float
    times_s: tuple[float, ...]
    tokens: int
    prompt_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.start_s

    @property
    def latency_s(self) -> float:
        return self.times_s[-1] - self.start_s


def rescore(records: Iterable[RequestRecord]) -> VllmScore | None:
    """Scores the streamed chat requests of a run; None when there were none."""
    chats = [
        record
        for record in records
        if record.family == "chat" and record.sent_s is not None and record.outcome is not Outcome.CANCELLED
    ]
    outputs = [output for record in chats if (output := _output(record)) is not None]
    if not outputs:
        return None
    duration = max(record.ended_s for record in chats) - min(record.sent_s or 0.0 for record in chats)
    total_input = sum(output.prompt_tokens for output in outputs)
    total_output = sum(output.tokens for output in outputs)
    peak, concurrent = _peaks(outputs)
    return VllmScore(
        completed=len(outputs),
        failed=len(chats) - len(outputs),
        duration_s=duration,
        total_input=total_input,
        total_output=total_output,
        request_throughput=len(outputs) / duration,
        output_throughput=total_output / duration,
        total_token_throughput=(total_input + total_output) / duration,
        ttft_ms=_spread([output.ttft_s for output in outputs]),
        tpot_ms=_spread([(o.latency_s - o.ttft_s) / (o.tokens - 1) for o in outputs if o.tokens > 1]),
        itl_ms=_spread([b - a for o in outputs for a, b in zip(o.times_s, o.times_s[1:], strict=False)]),
        e2el_ms=_spread([output.latency_s for output in outputs]),
        max_output_tokens_per_s=peak,
        max_concurrent_requests=concurrent,
    )


def _output(record: RequestRecord) -> _Output | None:
    times = tuple(heapq.merge(record.token_times_s(), sorted(record.other_choices_s)))
    if record.sent_s is None or record.outcome not in _SUCCESSES or not times:
        return None
    # Without usage vLLM counts the text with a tokenizer, or takes one token when it has none; so do we.
    return _Output(record.sent_s, times, record.output_tokens or 1, record.prompt_tokens or 0)


def _spread(seconds: Sequence[float]) -> Spread:
    values = sorted(seconds) or [0.0]
    ms = {p: 1000 * _interpolated(values, p / 100) for p in PERCENTILES}
    return Spread(1000 * fmean(values), 1000 * _interpolated(values, 0.5), 1000 * pstdev(values), ms)


def _interpolated(ordered: Sequence[float], p: float) -> float:
    """NumPy's default percentile: linear between the two nearest ranks."""
    position = p * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _peaks(outputs: Sequence[_Output]) -> tuple[float, int]:
    """(events in the busiest second, requests active in the most crowded one)."""
    first = min(output.start_s for output in outputs)
    events: dict[int, int] = {}
    active: dict[int, int] = {}
    for output in outputs:
        for at in output.times_s:
            events[int(at - first)] = events.get(int(at - first), 0) + 1
        for second in range(int(output.start_s - first), int(output.times_s[-1] - first) + 1):
            active[second] = active.get(second, 0) + 1
    return float(max(events.values())), max(active.values())
