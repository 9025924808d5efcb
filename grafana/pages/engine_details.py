"""The lower part of the engines' page: caches, lengths, API servers, and what not every installation has."""

from __future__ import annotations

from grafana.panels import Column, PanelBuilder, Query, grid, heat, lines, percentiles
from grafana.promql import ratio
from grafana.variables import ENGINES


def hit_ratio(cache: str, by: tuple[str, ...] = ()) -> str:
    return ratio(ENGINES.rate(f"vllm:{cache}_hits_total", by), ENGINES.rate(f"vllm:{cache}_queries_total", by))


CACHING: list[PanelBuilder] = [
    lines(
        "Prefix cache hits by worker",
        [Query(hit_ratio("prefix_cache", ("worker",)), "{{worker}}")],
        "percentunit",
        "Share of prompt tokens found in the worker's KV cache: `vllm:prefix_cache_hits_total`, "
        "`vllm:prefix_cache_queries_total`.",
        at_most=1,
    ),
    lines(
        "Cached prompt tokens",
        [Query(ENGINES.rate("vllm:prompt_tokens_cached_total", ("worker",)), "{{worker}}")],
        "count:tok/s",
        "Prompt tokens per second that needed no prefill: `vllm:prompt_tokens_cached_total`.",
        stacked=True,
        no_value="no engines",
    ),
    lines(
        "Prefill work per request",
        [
            Query(ENGINES.mean("vllm:request_prefill_kv_computed_tokens"), "computed"),
            Query(ENGINES.mean("vllm:request_prompt_tokens"), "prompt"),
        ],
        "short",
        "Mean prompt tokens of a request, and those of them that were computed: "
        "`vllm:request_prefill_kv_computed_tokens`, `vllm:request_prompt_tokens`.",
    ),
]

WORKLOAD: list[PanelBuilder] = [
    lines(
        "Prompt length",
        percentiles(ENGINES, "vllm:request_prompt_tokens"),
        "short",
        "Tokens in a request's prompt: `vllm:request_prompt_tokens`.",
    ),
    lines(
        "Output length",
        percentiles(ENGINES, "vllm:request_generation_tokens"),
        "short",
        "Tokens generated for a request: `vllm:request_generation_tokens`.",
    ),
    lines(
        "Output limit asked for",
        percentiles(ENGINES, "vllm:request_params_max_tokens"),
        "short",
        "`max_tokens` of the requests: `vllm:request_params_max_tokens`.",
    ),
    heat(
        "Prompt length, distribution",
        ENGINES.buckets("vllm:request_prompt_tokens"),
        "short",
        "`vllm:request_prompt_tokens`.",
        width=12,
    ),
    heat(
        "Output length, distribution",
        ENGINES.buckets("vllm:request_generation_tokens"),
        "short",
        "`vllm:request_generation_tokens`.",
        width=12,
    ),
]

HTTP: list[PanelBuilder] = [
    lines(
        "Answers by status",
        [Query(ENGINES.rate("http_requests_total", ("status",)), "{{status}}")],
        "reqps",
        "HTTP answers of the API servers per second, the supervisor's probes included: `http_requests_total`.",
        stacked=True,
        no_value="no engines",
        width=12,
    ),
    lines(
        "Answers by route",
        [Query(ENGINES.rate("http_requests_total", ("handler",)), "{{handler}}")],
        "reqps",
        "HTTP answers of the API servers per second: `http_requests_total`.",
        stacked=True,
        no_value="no engines",
        width=12,
    ),
]

SETUP: list[PanelBuilder] = [
    grid(
        "KV caches",
        ("worker", "engine", "num_gpu_blocks", "block_size", "cache_dtype", "enable_prefix_caching"),
        [
            Column(
                "Engines",
                ENGINES.highest(
                    "vllm:cache_config_info",
                    ("worker", "engine", "num_gpu_blocks", "block_size", "cache_dtype", "enable_prefix_caching"),
                ),
                "short",
            )
        ],
        "What each engine made of its memory; blocks times block size is the cache in tokens: "
        "`vllm:cache_config_info`.",
        no_value="no engines",
        width=8,
        height=8,
    ),
    lines(
        "Estimated arithmetic per GPU",
        [Query(ENGINES.rate("vllm:estimated_flops_per_gpu_total", ("worker",)), "{{worker}}")],
        "flops",
        "Operations per second by vLLM's own estimate, where it is asked to make one: "
        "`vllm:estimated_flops_per_gpu_total`.",
        no_value="no engines",
    ),
    lines(
        "Estimated memory traffic per GPU",
        [
            Query(ENGINES.rate("vllm:estimated_read_bytes_per_gpu_total", ("worker",)), "{{worker}} read"),
            Query(ENGINES.rate("vllm:estimated_write_bytes_per_gpu_total", ("worker",)), "{{worker}} written"),
        ],
        "Bps",
        "Bytes per second by vLLM's own estimate, where it is asked to make one: "
        "`vllm:estimated_read_bytes_per_gpu_total`, `vllm:estimated_write_bytes_per_gpu_total`.",
        no_value="no engines",
    ),
]

OPTIONAL: list[PanelBuilder] = [
    lines(
        "External prefix cache hits",
        [Query(hit_ratio("external_prefix_cache", ("worker",)), "{{worker}}")],
        "percentunit",
        "Share of tokens found in a KV connector's cache: `vllm:external_prefix_cache_hits_total`, "
        "`vllm:external_prefix_cache_queries_total`.",
        at_most=1,
        no_value="not in use",
    ),
    lines(
        "Multi-modal cache hits",
        [Query(hit_ratio("mm_cache", ("worker",)), "{{worker}}")],
        "percentunit",
        "Share of items found in the cache of processed images and sounds: `vllm:mm_cache_hits_total`, "
        "`vllm:mm_cache_queries_total`.",
        at_most=1,
        no_value="not in use",
    ),
    lines(
        "Asleep",
        [
            Query(
                ENGINES.highest("vllm:engine_sleep_state", ("worker", "sleep_state"), 'sleep_state!="awake"'),
                "{{worker}} {{sleep_state}}",
            )
        ],
        "short",
        "1 while an engine sleeps at that level: `vllm:engine_sleep_state`.",
        no_value="no engines",
    ),
]
