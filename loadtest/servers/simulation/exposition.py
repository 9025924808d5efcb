"""Counters, gauges and histograms of the simulated engine, written as vLLM 0.32 exposes them."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TTFT_LONG = (20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_LATENCY_LONG = (960.0, 1920.0, 7680.0)


def token_buckets(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, ... up to the limit: vLLM builds its token histograms so from max_model_len."""
    steps = (digit * 10**power for power in range(len(str(limit))) for digit in (1, 2, 5))
    return tuple(step for step in steps if step <= limit)


@dataclass(slots=True)
class Histogram:
    """A Prometheus histogram."""

    buckets: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.buckets) + 1)

    def observe(self, value: float) -> None:
        """Counts one value into its bucket (upper bounds inclusive)."""
        self.counts[bisect.bisect_left(self.buckets, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Values counted."""
        return sum(self.counts)


@dataclass(slots=True)
class EngineCounts:
    """Everything the engine counts; names follow vLLM's metrics without prefix and suffix."""

    max_model_len: int = 8192
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    rejections: int = 0
    success: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
    )
    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    request_prompt_tokens: Histogram = field(init=False)
    request_generation_tokens: Histogram = field(init=False)
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(_ITERATION))
    max_num_generation_tokens: Histogram = field(init=False)
    params_n: Histogram = field(default_factory=lambda: Histogram((1, 2, 5, 10, 20)))
    params_max_tokens: Histogram = field(init=False)
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram((*_TTFT, *_TTFT_LONG)))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(_ITL))
    time_per_output_token: Histogram = field(default_factory=lambda: Histogram(_ITL))
    e2e_latency: Histogram = field(default_factory=lambda: Histogram((*_LATENCY, *_LATENCY_LONG)))
    queue_time: Histogram = field(default_factory=lambda: Histogram((*_LATENCY, *_LATENCY_LONG)))
    inference_time: Histogram = field(default_factory=lambda: Histogram((*_LATENCY, *_LATENCY_LONG)))
    prefill_time: Histogram = field(default_factory=lambda: Histogram((*_LATENCY, *_LATENCY_LONG)))
    decode_time: Histogram = field(default_factory=lambda: Histogram((*_LATENCY, *_LATENCY_LONG)))
    num_preemptions: Histogram = field(default_factory=lambda: Histogram((1, 2, 3, 4, 5, 10, 20)))
    prefill_computed: Histogram = field(init=False)
    http_requests: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        buckets = token_buckets(self.max_model_len)
        self.request_prompt_tokens = Histogram(buckets)
        self.request_generation_tokens = Histogram(buckets)
        self.max_num_generation_tokens = Histogram(buckets)
        self.params_max_tokens = Histogram(buckets)
        self.prefill_computed = Histogram(buckets)


Labels = Mapping[str, str]


def _labels(labels: Labels) -> str:
    escaped = (f'{k}="{v}"'.replace("\n", r"\n") for k, v in sorted(labels.items()))
    return "{" + ",".join(escaped) + "}" if labels else ""


class _Writer:
    def __init__(self, base: Labels, created: float) -> None:
        self._base, self._created = base, created
        self.lines: list[str] = []

    def _head(self, name: str, kind: str, help_: str) -> None:
        self.lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]

    def gauge(self, name: str, help_: str, samples: Iterable[tuple[Labels, float]]) -> None:
        self._head(name, "gauge", help_)
        self.lines += [f"{name}{_labels({**self._base, **extra})} {float(value)!r}" for extra, value in samples]

    def counter(self, name: str, help_: str, samples: Sequence[tuple[Labels, float]]) -> None:
        self._head(f"{name}_total", "counter", help_)
        self.lines += [f"{name}_total{_labels({**self._base, **extra})} {float(value)!r}" for extra, value in samples]
        self.gauge(f"{name}_created", help_, [(extra, self._created) for extra, _ in samples])

    def histogram(self, name: str, help_: str, histogram: Histogram) -> None:
        self._head(name, "histogram", help_)
        total = 0
        bounds = [*(repr(float(b)) for b in histogram.buckets), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            total += count
            self.lines.append(f"{name}_bucket{_labels({**self._base, 'le': bound})} {float(total)!r}")
        self.lines.append(f"{name}_count{_labels(self._base)} {float(total)!r}")
        self.lines.append(f"{name}_sum{_labels(self._base)} {float(histogram.sum)!r}")
        self.gauge(f"{name}_created", help_, [({}, self._created)])


def render(counts: EngineCounts, model: str, created: float, kv_tokens: int, block_size: int, caching: bool) -> str:
    """The whole exposition text. `created` is the start of the process, seconds since 1970."""
    writer = _Writer({"engine": "0", "model_name": model}, created)
    c = counts
    none: Labels = {}
    for name in ("flops", "read_bytes", "write_bytes"):
        writer.counter(f"vllm:estimated_{name}_per_gpu", "Estimate per GPU.", [(none, 0)])
    writer.gauge("vllm:num_requests_running", "Requests in the batch.", [(none, c.running)])
    writer.gauge("vllm:num_requests_waiting", "Requests that wait.", [(none, c.waiting)])
    reasons = [({"reason": "capacity"}, float(c.waiting)), ({"reason": "deferred"}, 0.0)]
    writer.gauge("vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", reasons)
    sleep = [({"sleep_state": "awake"}, 1.0), ({"sleep_state": "weights_offloaded"}, 0.0)]
    writer.gauge("vllm:engine_sleep_state", "Sleep state.", [*sleep, ({"sleep_state": "discard_all"}, 0.0)])
    writer.gauge("vllm:kv_cache_usage_perc", "KV-cache usage, 1 is full.", [(none, c.kv_cache_usage)])
    writer.counter("vllm:prefix_cache_queries", "Tokens looked up.", [(none, c.prefix_cache_queries)])
    writer.counter("vllm:prefix_cache_hits", "Tokens found.", [(none, c.prefix_cache_hits)])
    for name in ("external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits"):
        writer.counter(f"vllm:{name}", "Not simulated.", [(none, 0)])
    writer.counter("vllm:num_preemptions", "Preemptions.", [(none, c.preemptions)])
    writer.counter("vllm:prompt_tokens", "Prefill tokens processed.", [(none, c.prompt_tokens)])
    computed = c.prompt_tokens - c.prompt_tokens_cached
    sources = [({"source": "local_compute"}, computed), ({"source": "local_cache_hit"}, c.prompt_tokens_cached)]
    writer.counter(
        "vllm:prompt_tokens_by_source", "Prompt tokens by source.", [*sources, ({"source": "external_kv_transfer"}, 0)]
    )
    writer.counter("vllm:prompt_tokens_cached", "Prompt tokens cached.", [(none, c.prompt_tokens_cached)])
    writer.counter("vllm:generation_tokens", "Tokens generated.", [(none, c.generation_tokens)])
    places = [({"source": "device"}, float(c.prompt_tokens_cached)), ({"source": "host"}, 0.0)]
    writer.counter("vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by place.", places)
    finished = [({"finished_reason": reason}, count) for reason, count in c.success.items()]
    writer.counter("vllm:request_success", "Requests finished.", finished)
    for name, histogram in (
        ("request_prompt_tokens", c.request_prompt_tokens),
        ("request_generation_tokens", c.request_generation_tokens),
        ("iteration_tokens_total", c.iteration_tokens),
        ("request_max_num_generation_tokens", c.max_num_generation_tokens),
        ("request_params_n", c.params_n),
        ("request_params_max_tokens", c.params_max_tokens),
        ("time_to_first_token_seconds", c.time_to_first_token),
        ("inter_token_latency_seconds", c.inter_token_latency),
        ("request_time_per_output_token_seconds", c.time_per_output_token),
        ("e2e_request_latency_seconds", c.e2e_latency),
        ("request_queue_time_seconds", c.queue_time),
        ("request_inference_time_seconds", c.inference_time),
        ("request_prefill_time_seconds", c.prefill_time),
        ("request_decode_time_seconds", c.decode_time),
        ("request_num_preemptions", c.num_preemptions),
        ("request_prefill_kv_computed_tokens", c.prefill_computed),
    ):
        writer.histogram(f"vllm:{name}", "As in vLLM.", histogram)
    info = {
        "block_size": str(block_size),
        "enable_prefix_caching": str(caching),
        "kv_cache_size_tokens": str(kv_tokens),
        "num_gpu_blocks": str(kv_tokens // block_size),
    }
    plain = _Writer({"engine": "0"}, created)
    plain.gauge("vllm:cache_config_info", "Configuration of the cache.", [(info, 1.0)])
    http = _Writer({}, created)
    requests = [({"handler": h, "method": m, "status": s}, n) for (h, m, s), n in c.http_requests.items()]
    http.counter("http_requests", "HTTP requests.", requests)
    rejected = _Writer({"model_name": model}, created)
    rejected.counter("vllm:admission_rejections", "Rejected.", [({"reason": "max_num_queued_reqs"}, c.rejections)])
    process = _Writer({}, created)
    process.gauge("process_start_time_seconds", "Start of the process.", [(none, created)])
    process.lines += [
        "# HELP process_cpu_seconds_total Processor time.",
        "# TYPE process_cpu_seconds_total counter",
        f"process_cpu_seconds_total {time.process_time()!r}",
    ]
    parts = (process, writer, rejected, plain, http)
    return "\n".join(line for part in parts for line in part.lines) + "\n"
