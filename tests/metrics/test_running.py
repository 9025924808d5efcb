"""
The metrics of a running fleet against its log and against abuse: what is counted is what is logged, number by number,
and nothing that a client writes makes a series.
"""

from __future__ import annotations

import asyncio
import json
import random
import string
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.types import Endpoint, Stage
from tests.cli.fleet_file import FleetFile, document, model
from tests.metrics.running import LONG_S, Key, Running
from tests.proxy.raw_client import RawConnection, chat, connect, post, request
from tests.tracing.collector import Collector

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

CHAT = "/v1/chat/completions"
ABUSES = 10_000
CLIENTS = 8
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Where traces go."""
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def running(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two gateway processes, two workers that get four requests each; the log as JSON, traces for who asks for them."""
    content = document(
        models={"m": model(replicas=2, aliases=["alias"], price_per_worker_hour=3600.0, max_in_flight=4)},
        processes=2,
        logging={"format": "json"},
        traces={"endpoint": collector.url, "sample_ratio": 0.0},
    )
    file = FleetFile(tmp_path_factory.mktemp("metrics"), content)
    with file.served:
        file.wait_states(m_0="ready", m_1="ready")
        yield Running(file)


async def traffic(port: int) -> None:
    """Streams and whole answers of several lengths at once, refusals, and clients that leave."""
    wanted = [
        *(post(CHAT, {**chat(stream=True), "model": name, "max_tokens": 3 + n}) for n in range(12) for name in "m"),
        *(post("/v1/completions", {"model": "alias", "prompt": "a", "max_tokens": 2 + n}) for n in range(6)),
        post("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 9, "stream": True}),
        post("/v1/responses", {"model": "m", "input": "a", "max_output_tokens": 9, "stream": True}),
        post("/v1/messages", {"model": "m", "messages": chat()["messages"], "max_tokens": 9, "stream": True}),
        post("/v1/embeddings", {"model": "m", "input": "a"}),
        post("/tokenize", {"model": "m", "prompt": "a"}),
        post(CHAT, {**chat(), "model": "no such model"}),
        post(CHAT, b"{"),
    ]

    async def ask(data: bytes) -> None:
        async with connect(port) as client:
            client.send(data)
            await client.answer()

    async def leave() -> None:
        async with connect(port) as client:
            client.send(post(CHAT, {**chat(stream=True), "model": "m", "max_tokens": 500, "ignore_eos": True}))
            answer = await client.head()
            for _ in range(4):
                await client.chunk(answer)
            client.reset()

    async with asyncio.timeout(LONG_S), asyncio.TaskGroup() as group:
        for data in wanted:
            group.create_task(ask(data))
        for _ in range(3):
            group.create_task(leave())


def histogram(samples: dict[Key, float], name: str, **labels: str) -> tuple[dict[float, int], float]:
    """Cumulative buckets by bound, and the sum."""
    wanted = set(labels.items())
    buckets = {
        float(dict(found)["le"]): int(value)
        for (sample, found), value in samples.items()
        if sample == f"{name}_bucket" and wanted <= found
    }
    (total,) = (value for (sample, found), value in samples.items() if sample == f"{name}_sum" and wanted <= found)
    return buckets, total


def rebuilt(bounds: dict[float, int], milliseconds: list[float]) -> dict[float, int]:
    """The same buckets made from logged values; compared in whole microseconds, which is how exact the log is."""
    values = [round(value * 1000) for value in milliseconds]
    whole = {bound: round(bound * 1e6) if bound < 1e9 else 10**18 for bound in bounds}
    return {bound: sum(value <= limit for value in values) for bound, limit in whole.items()}


def test_every_histogram_is_what_its_log_lines_make(running: Running) -> None:
    """Bucket by bucket, exactly, over all processes; sums to the microsecond that each line was rounded to."""
    asyncio.run(traffic(running.port))
    lines, samples = running.settled()
    assert {0, 1} == {line["slot"] for line in lines}

    by_label: list[tuple[str, dict[str, str], list[float]]] = []
    for endpoint in {line["endpoint"] for line in lines}:
        for name in {line["model"] for line in lines if line["endpoint"] == endpoint}:
            own = [x["duration_ms"] for x in lines if (x["endpoint"], x["model"]) == (endpoint, name)]
            labels = {"model": name or "other", "endpoint": endpoint}
            by_label.append(("gateway_request_duration_seconds", labels, own))
    streams = [line for line in lines if line["stream"] and line["model"] == "m"]
    for metric, field in (
        ("gateway_time_to_first_token_seconds", "ttft_ms"),
        ("gateway_time_per_output_token_seconds", "tpot_ms"),
    ):
        by_label.append((metric, {"model": "m"}, [line[field] for line in streams if field in line]))
    for stage in Stage:
        own = [line[f"{stage}_ms"] for line in lines if f"{stage}_ms" in line]
        by_label.append(("gateway_overhead_seconds", {"stage": stage}, own))

    tried = [line.get("admission_ms", 0.0) for line in lines if line.get("attempts") or "admission_ms" in line]
    by_label.append(("gateway_queue_wait_seconds", {"model": "m"}, tried))

    for metric, labels, values in by_label:
        buckets, total = histogram(samples, metric, **labels)
        assert rebuilt(buckets, values) == buckets, (metric, labels)
        assert abs(sum(values) / 1000 - total) <= 1e-6 * len(values) + 1e-9, (metric, labels)
    assert 5 <= sum(value > 0 for value in tried)
    assert 15 <= len([line for line in streams if "ttft_ms" in line])
    assert 15 <= len([line for line in streams if "tpot_ms" in line])


def test_gaps_between_tokens_are_what_the_log_lines_add_up_to(running: Running) -> None:
    """A stream's line has its token-bearing events and the time from the first to the last: count and sum of gaps."""
    asyncio.run(traffic(running.port))
    lines, samples = running.settled()
    streams = [line for line in lines if line["model"] == "m" and "token_events" in line]
    buckets, total = histogram(samples, "gateway_inter_token_latency_seconds", model="m")

    assert sum(line["token_events"] - 1 for line in streams) == buckets[float("inf")]
    assert abs(sum(line["tokens_ms"] for line in streams) / 1000 - total) <= 1e-6 * len(streams) + 1e-9
    assert 100 < buckets[float("inf")]


def test_counters_are_what_the_log_lines_add_up_to(running: Running) -> None:
    """Outcomes and tokens; what no usage confirmed is in the line, marked, and not in the counter."""
    asyncio.run(traffic(running.port))
    lines, samples = running.settled()
    outcomes = Counter((line["model"] or "other", line["endpoint"], line["outcome"]) for line in lines)
    counted = {
        (found["model"], found["endpoint"], found["outcome"]): int(value)
        for (name, labels), value in samples.items()
        for found in [dict(labels)]
        if name == "gateway_requests_total" and value
    }
    told = sum(line.get("output_tokens", 0) for line in lines if "output_tokens_estimated" not in line)
    estimated = sum(line["output_tokens"] for line in lines if "output_tokens_estimated" in line)
    of_model = frozenset({("model", "m")})

    assert dict(outcomes) == counted
    assert told == samples["gateway_output_tokens_total", of_model]
    assert estimated == samples["gateway_unconfirmed_token_events_total", of_model]
    assert estimated > 0
    assert sum(line.get("prompt_tokens", 0) for line in lines) == samples["gateway_prompt_tokens_total", of_model]


def test_no_series_comes_from_what_clients_write(running: Running) -> None:
    """
    Ten thousand requests with random paths, models, methods, ids, queries and headers: as many series as before.

    Each known route was asked once before, for a known model and for an unknown one, because the series of a route
    appear together with its first request.
    """
    asyncio.run(prime(running.port))
    _, before = running.settled()
    asyncio.run(abuse(running.port))
    lines, after = running.settled()

    assert set(before) == set(after)
    requests = {key for key in after if key[0] == "gateway_requests_total"}
    assert sum(after[key] - before[key] for key in requests) > ABUSES / 4
    assert {"", "m"} == {line["model"] for line in lines}
    assert 0 == after["gateway_log_lines_dropped_total", frozenset()]


def test_a_request_that_asks_for_it_is_traced_by_the_running_gateway(running: Running, collector: Collector) -> None:
    """From the configuration to the collector, with the worker's attempt below it; nothing is lost."""

    async def ask() -> None:
        async with connect(running.port) as client:
            context = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
            client.send(post(CHAT, {**chat(stream=True), "model": "m", "max_tokens": 3}, context))
            await client.answer()

    asyncio.run(ask())
    server, attempt = collector.wait(2)

    assert [TRACE, TRACE] == [server.trace, attempt.trace]
    assert server.id == attempt.parent
    assert server.resource["service.instance.id"].endswith((f":{running.port}/0", f":{running.port}/1"))
    assert 0 == running.samples()["gateway_trace_spans_dropped_total", frozenset()]


def test_what_workers_cost_rises_while_they_run(running: Running) -> None:
    """One a second and worker is their price here."""
    costs = [
        {dict(labels)["worker"]: value for (name, labels), value in running.samples().items() if "worker_cost" in name}
        for _ in range(2)
    ]

    assert {"m-0", "m-1"} == set(costs[0])
    assert all(0 < costs[0][worker] < costs[1][worker] for worker in costs[0])


async def prime(port: int) -> None:
    """One request for every route and either kind of model."""
    async with connect(port) as client:
        for endpoint in Endpoint:
            path = "/v1/audio/transcriptions" if endpoint is Endpoint.AUDIO else endpoint.value
            for name in ("m", "unknown"):
                client.send(post(path, {"model": name}))
                await client.answer()


async def abuse(port: int) -> None:
    """All of it, over a few connections; whatever the answers are, they are answers."""
    chance = random.Random(7)

    async def one_client(count: int) -> None:
        async with AsyncExitStack() as stack:
            client: RawConnection | None = None
            for _ in range(count):
                client = client or await stack.enter_async_context(connect(port))
                method, data = nonsense(chance)
                client.send(data)
                answer = await client.answer(head=method == "HEAD")
                assert 200 <= answer.status < 500
                if answer.header("connection") == "close":
                    client = None

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(one_client(ABUSES // CLIENTS))


def nonsense(chance: random.Random) -> tuple[str, bytes]:
    """A request as nobody should send it: its method, and its bytes."""

    def word(letters: str = string.ascii_letters + string.digits + "._-") -> str:
        return "".join(chance.choices(letters, k=chance.randint(1, 40)))

    known = chance.random() < 0.7
    path = chance.choice([endpoint.value for endpoint in Endpoint]) if known else f"/{word()}/{word()}"
    path += f"?{word()}={word()}" if chance.random() < 0.3 else ""
    method = "POST" if chance.random() < 0.6 else chance.choice(["GET", "HEAD", "PUT", "DELETE", "PATCH", "PROPFIND"])
    headers = {
        "content-type": "application/json",
        "x-request-id": word(),
        "user-agent": word(),
        "x-session-id": word(),
        "authorization": f"Bearer {word()}",
        f"x-{word(string.ascii_lowercase)}": word(),
    }
    content: dict[str, Any] = {"model": word(string.printable), word(): word(), "user": word(), "messages": []}
    body = json.dumps(content).encode() if method in ("POST", "PUT", "PATCH") else b""
    return method, request(method, path, headers, body)
