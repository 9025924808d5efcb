"""The server's own figures: found at a worker, at a gateway's admin port, and absent elsewhere."""

from __future__ import annotations

import asyncio

import anyio.to_thread
import pytest

from loadtest.server_metrics import find_sources, read_sample, sample_of
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Script
from loadtest.target import UsageError, parse_target

pytestmark = pytest.mark.anyio

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 30.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 40.0
python_gc_objects_collected_total{generation="0"} 9.0
"""


def test_engines_are_summed_and_the_cache_is_their_mean() -> None:
    """Queues and counters add up, a share does not."""
    sample = read_sample(PAGE, 1.5)

    assert sample is not None
    assert (sample.at_s, sample.running, sample.waiting, sample.kv_cache_usage) == (1.5, 5, 1, 0.375)
    assert (sample.preemptions, sample.prefix_hits, sample.prefix_queries) == (7, 30, 40)


@pytest.mark.parametrize("text", ["", "gateway_requests_total 1\n", "vllm:num_requests_running{ 3\n", "<html>"])
def test_other_pages_have_no_sample(text: str) -> None:
    """Not zeros."""
    assert read_sample(text, 0.0) is None


async def test_a_gateway_lists_its_workers_and_they_are_summed() -> None:
    """By the admin port's /discovery; --server-metrics may name either."""
    page = scripts.answer(200, PAGE.encode(), content=(("content-type", "text/plain"),))
    paths: list[str] = []

    def answer(request: RecordedRequest) -> Script:
        paths.append(request.path)
        if request.path == "/discovery":
            host = server.url.removeprefix("http://")
            labels = [{"__metrics_path__": f"/workers/w{n}/metrics"} for n in range(2)]
            return scripts.answer(200, [{"targets": [host], "labels": label} for label in labels])
        return page if request.path.startswith("/workers/") else scripts.ERRORS["not-found"]

    async with asyncio.timeout(20), FaultServer(answer) as server:
        target = parse_target(server.url)
        sources = await anyio.to_thread.run_sync(find_sources, target, "m", server.url)
        sample = await anyio.to_thread.run_sync(sample_of, sources, lambda: 2.0)
        with pytest.raises(UsageError, match="found none"):
            await anyio.to_thread.run_sync(find_sources, target, "m", f"{server.url}/nowhere")

    assert [f"{server.url}/workers/w{n}/metrics" for n in range(2)] == [str(source) for source in sources]
    assert sample is not None
    assert (sample.running, sample.kv_cache_usage, sample.preemptions) == (10, 0.375, 14)
    assert "/metrics" in paths


async def test_a_worker_has_its_own_and_a_reading_is_all_or_nothing() -> None:
    """A sum in which one worker is missing would look like a drop."""
    page = scripts.answer(200, PAGE.encode())
    async with asyncio.timeout(20), FaultServer(page, page, scripts.ERRORS["busy"]) as server:
        target = parse_target(server.url)
        sources = await anyio.to_thread.run_sync(find_sources, target, "m", None)
        first = await anyio.to_thread.run_sync(sample_of, sources, lambda: 1.0)
        second = await anyio.to_thread.run_sync(sample_of, sources, lambda: 2.0)

    assert [f"{server.url}/metrics"] == [str(source) for source in sources]
    assert first is not None
    assert second is None
