"""Questions to a worker over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.types import WorkerAddress
from gateway.workers.probe import HttpProber, engine_iterations
from gateway.workers.services import ModelFacts, ProbeFailure

pytestmark = pytest.mark.anyio

MODELS = (
    '{"object":"list","data":[{"id":"smol","max_model_len":2048},'
    '{"id":"adapter","max_model_len":null,"parent":"smol"}]}'
)
HTTP = ("GET", "POST")


class Worker:
    """Answers by path: (status, body); a path that is not there gets 404, None is never answered. `seen`: requests."""

    def __init__(self, answers: dict[str, tuple[int, str] | None]) -> None:
        self.answers = answers
        self.seen: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        self.seen.append(head)
        answer = self.answers.get(path, (404, '{"detail":"Not Found"}'))
        if answer is None:
            await reader.read()
        else:
            status, body = answer
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
        writer.close()


@asynccontextmanager
async def asked(
    answers: dict[str, tuple[int, str] | None], *, key: str | None = None, timeout_s: float = 5
) -> AsyncIterator[tuple[HttpProber, Worker]]:
    worker = Worker(answers)
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    prober = HttpProber(WorkerAddress(host="127.0.0.1", port=port), key, "smol", timeout_s=timeout_s)
    try:
        yield prober, worker
    finally:
        await prober.aclose()
        server.close()
        await server.wait_closed()


async def test_health_is_status_200() -> None:
    """Whatever the body."""
    async with asked({"/health": (200, "")}) as (prober, _):
        await prober.health()


@pytest.mark.parametrize(("status", "dead"), [(503, True), (500, False), (404, False)])
async def test_only_503_says_that_the_engine_is_dead(status: int, dead: bool) -> None:
    """vLLM's own word for it; anything else may be somebody else's."""
    async with asked({"/health": (status, "")}) as (prober, _):
        with pytest.raises(ProbeFailure, match=str(status)) as caught:
            await prober.health()
        assert dead is caught.value.dead


async def test_silence_is_a_failure_within_the_limit() -> None:
    """And the message names the limit."""
    async with asked({"/health": None}, timeout_s=0.05) as (prober, _):
        with pytest.raises(ProbeFailure, match=r"within 0\.05 s"):
            await prober.health()


async def test_nobody_there_is_a_failure() -> None:
    """A refused connection, told as such."""
    async with asked({}) as (prober, _):
        pass
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    prober = HttpProber(WorkerAddress(host="127.0.0.1", port=port), None, "smol", timeout_s=5)
    with pytest.raises(ProbeFailure, match="/health: "):
        await prober.health()
    await prober.aclose()


async def test_a_proxy_in_the_environment_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback probes through a company's proxy are the classic start-up failure."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with asked({"/health": (200, "")}) as (prober, _):
        await prober.health()


async def test_facts_are_names_length_and_version() -> None:
    """The length is that of the model, not of an adapter."""
    async with asked({"/v1/models": (200, MODELS), "/version": (200, '{"version":"0.32.0"}')}, key="k") as (
        prober,
        worker,
    ):
        assert ModelFacts(("smol", "adapter"), 2048, "0.32.0") == await prober.facts()
        assert all("authorization: bearer k" in head.lower() for head in worker.seen)


async def test_a_server_without_version_is_fine() -> None:
    """The version is for people."""
    async with asked({"/v1/models": (200, MODELS)}) as (prober, _):
        assert "" == (await prober.facts()).engine_version


@pytest.mark.parametrize("answer", [(401, '{"error":"Unauthorized"}'), (200, "<html>"), (200, "[]"), (500, "{}")])
async def test_what_is_no_model_list_is_a_failure(answer: tuple[int, str]) -> None:
    """A login page, a wrong key, another program."""
    async with asked({"/v1/models": answer}) as (prober, _):
        with pytest.raises(ProbeFailure, match="/v1/models"):
            await prober.facts()


async def test_one_token_of_a_generating_model() -> None:
    """And never a word about embeddings."""
    async with asked({"/v1/completions": (200, '{"choices":[{"finish_reason":"length"}]}')}) as (prober, worker):
        await prober.generate(5)
        await prober.generate(5)
        assert ["POST /v1/completions"] * 2 == [head.split(" HTTP")[0] for head in worker.seen]


async def test_a_pooling_model_is_asked_for_an_embedding() -> None:
    """Found out once, then asked at once."""
    async with asked({"/v1/embeddings": (200, '{"data":[]}')}) as (prober, worker):
        await prober.generate(5)
        await prober.generate(5)
        assert ["/v1/completions", "/v1/embeddings", "/v1/embeddings"] == [head.split(" ")[1] for head in worker.seen]


async def test_a_model_of_neither_kind_is_not_tested() -> None:
    """Nothing to ask is no failure."""
    async with asked({}) as (prober, worker):
        await prober.generate(5)
        await prober.generate(5)
        assert 2 == len(worker.seen)


@pytest.mark.parametrize(
    ("answer", "dead"),
    [
        ((500, "cannot schedule new futures after shutdown"), False),
        ((401, '{"error":"Unauthorized"}'), False),
        ((200, '{"choices":[{"finish_reason":"abort"}]}'), True),
    ],
)
async def test_an_answer_that_is_no_token_is_a_failure(answer: tuple[int, str], dead: bool) -> None:
    """A finish reason of abort is how a dying engine ends a request, with status 200."""
    async with asked({"/v1/completions": answer}) as (prober, _):
        with pytest.raises(ProbeFailure) as caught:
            await prober.generate(5)
        assert dead is caught.value.dead


async def test_iterations_are_read_from_the_metrics() -> None:
    """Only from a good answer."""
    text = 'vllm:iteration_tokens_total_count{engine="0",model_name="m"} 41.0\n'
    async with asked({"/metrics": (200, text)}) as (prober, worker):
        assert 41.0 == await prober.iterations()
        worker.answers["/metrics"] = (500, "")
        with pytest.raises(ProbeFailure, match="/metrics answered 500"):
            await prober.iterations()


def test_iterations_are_summed_over_ranks() -> None:
    """And are None where the metric is not exported; buckets and sums are not counts."""
    text = (
        "# TYPE vllm:iteration_tokens_total histogram\n"
        'vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 5.0\n'
        'vllm:iteration_tokens_total_count{engine="0"} 40.0\n'
        'vllm:iteration_tokens_total_count{engine="1"} 2.0\n'
        'vllm:iteration_tokens_total_sum{engine="0"} 900.0\n'
    )
    assert 42.0 == engine_iterations(text)
    assert engine_iterations("vllm:num_requests_running 0\n") is None
    with pytest.raises(ProbeFailure, match="without a number"):
        engine_iterations("vllm:iteration_tokens_total_count nonsense\n")
