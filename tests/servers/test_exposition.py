"""The metrics text: readable by Prometheus, with vLLM's buckets and label order."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.servers.simulation.exposition import EngineCounts, Histogram, render, token_buckets


def test_prometheus_reads_every_line_and_finds_what_was_counted() -> None:
    """Counters keep their value, histograms are cumulative and end at +Inf."""
    counts = EngineCounts()
    counts.generation_tokens = 7
    for tokens in (1, 3, 100_000):
        counts.iteration_tokens.observe(tokens)
    text = render(counts, "m", 1.5, 1_600, 16, True)
    samples = {(s.name, s.labels.get("le")): s.value for f in text_string_to_metric_families(text) for s in f.samples}

    assert samples["vllm:generation_tokens_total", None] == 7
    assert samples["vllm:iteration_tokens_total_bucket", "1.0"] == 1
    assert samples["vllm:iteration_tokens_total_bucket", "8.0"] == 2
    assert samples["vllm:iteration_tokens_total_bucket", "+Inf"] == 3
    assert samples["vllm:iteration_tokens_total_count", None] == 3
    assert samples["vllm:iteration_tokens_total_sum", None] == 100_004


def test_labels_are_sorted_as_vllm_sends_them() -> None:
    """Text tools that match on a prefix of the line keep working."""
    lines = render(EngineCounts(), "m", 1.5, 1_600, 16, True).splitlines()

    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 0.0' in lines
    assert 'vllm:request_prompt_tokens_bucket{engine="0",le="1.0",model_name="m"} 0.0' in lines


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1024, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
        (8192, (*(1, 2, 5, 10, 20, 50, 100, 200, 500), 1000, 2000, 5000)),
    ],
)
def test_token_buckets_follow_the_model_length(limit: int, expected: tuple[int, ...]) -> None:
    """As recorded for a model of 1024 tokens."""
    assert token_buckets(limit) == expected


def test_upper_bounds_are_inclusive() -> None:
    """A value equal to a bound is in its bucket."""
    histogram = Histogram((1, 2))
    histogram.observe(1)
    histogram.observe(2)
    histogram.observe(3)

    assert histogram.counts == [1, 1, 1]
