"""The simulated worker inside the test's own loop: routes, frames, usage, metrics, errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from loadtest.servers.simulation.options import SimulatorOptions, parse_options
from loadtest.servers.simulator import Simulator, serving

pytestmark = pytest.mark.anyio

PARIS = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
FAST = SimulatorOptions(names=("m", "alias"), itl_ms=0.5, itl_ms_per_seq=0, prefill_ms_per_token=0)


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with serving(FAST) as running:
        yield running


@pytest.fixture
async def client(simulator: Simulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False, timeout=10) as http:
        yield http


async def metric(client: httpx.AsyncClient, name: str) -> float:
    """The value of the only series whose line starts with that name."""
    text = (await client.get("/metrics")).text
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert len(found) == 1, (name, found)
    return float(found[0])


def events(text: str) -> list[Any]:
    """The data of each event, parsed, [DONE] as it is."""
    data = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [d if d == "[DONE]" else json.loads(d) for d in data]


async def test_a_stream_has_vllms_events_and_says_paris(client: httpx.AsyncClient) -> None:
    """Role, tokens, finish, usage, DONE; what was generated is counted in the metrics exactly."""
    answer = await client.post(
        "/v1/chat/completions", json={**PARIS, "stream": True, "stream_options": {"include_usage": True}}
    )
    got = events(answer.text)

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "Paris" in "".join(e["choices"][0]["delta"]["content"] for e in got[1:-2])
    assert got[-3]["choices"][0]["finish_reason"] == "stop"
    assert got[-2]["choices"] == []
    assert got[-1] == "[DONE]"
    generated = got[-2]["usage"]["completion_tokens"]
    assert await metric(client, "vllm:generation_tokens_total") == generated
    assert await metric(client, "vllm:prompt_tokens_total") == got[-2]["usage"]["prompt_tokens"]
    assert await metric(client, "vllm:iteration_tokens_total_count") == generated
    assert await metric(client, "vllm:num_requests_running") == 0


async def test_usage_appears_only_when_asked_for(client: httpx.AsyncClient) -> None:
    """include_usage adds one event; continuous_usage_stats puts it into every event, 0 in the role event."""
    plain = events((await client.post("/v1/chat/completions", json={**PARIS, "stream": True})).text)
    assert not any("usage" in e for e in plain if e != "[DONE]")

    asked = {"include_usage": True, "continuous_usage_stats": True}
    body = {**PARIS, "stream": True, "stream_options": asked}
    got = [e for e in events((await client.post("/v1/chat/completions", json=body)).text) if e != "[DONE]"]
    counts = [e["usage"]["completion_tokens"] for e in got]
    assert counts[:3] == [0, 1, 2]
    assert counts == sorted(counts)


async def test_the_openai_sdk_reads_both_forms(simulator: Simulator) -> None:
    """The SDK of the field works against it, streaming and not, with several choices."""
    async with openai.AsyncOpenAI(
        base_url=f"{simulator.url}/v1", api_key="x", http_client=httpx.AsyncClient(trust_env=False)
    ) as sdk:
        whole = await sdk.chat.completions.create(model="m", messages=PARIS["messages"], n=2, max_tokens=4)  # type: ignore[call-overload]
        texts = ["", ""]
        async for part in await sdk.chat.completions.create(  # type: ignore[call-overload]
            model="alias", messages=PARIS["messages"], n=2, stream=True
        ):
            for choice in part.choices:
                texts[choice.index] += choice.delta.content or ""

    assert [c.finish_reason for c in whole.choices] == ["length", "length"]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    assert texts == ["The capital of France is Paris."] * 2


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/completions", {"prompt": "hello", "max_tokens": 4}, "data: [DONE]"),
        ("/v1/messages", {"max_tokens": 4, "messages": PARIS["messages"]}, "data: [DONE]"),
        ("/v1/responses", {"max_output_tokens": 4, "input": "hello"}, "event: response.incomplete"),
    ],
)
async def test_the_other_generating_routes_stream_and_answer_whole(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], last: str
) -> None:
    """Each in its own form, with four tokens counted."""
    whole = await client.post(path, json={"model": "m", **body})
    streamed = await client.post(path, json={"model": "m", **body, "stream": True})

    assert (whole.status_code, streamed.status_code) == (200, 200)
    usage = whole.json()["usage"]
    assert 4 == usage.get("completion_tokens", usage.get("output_tokens"))
    assert last in streamed.text.strip().split("\n\n")[-1]
    assert await metric(client, "vllm:generation_tokens_total") == 8


@pytest.mark.parametrize(
    ("status", "type_", "param", "change"),
    [
        (404, "NotFoundError", "model", {"model": "nope"}),
        (400, "Bad Request", "body.messages", {"messages": None}),
        (400, "BadRequestError", "temperature", {"temperature": -1}),
        (400, "BadRequestError", "max_tokens", {"max_tokens": 0}),
        (400, "BadRequestError", "max_tokens", {"max_tokens": 99_999}),
        (400, "BadRequestError", "input_tokens", {"messages": [{"role": "user", "content": "x" * 40_000}]}),
        (400, "Bad Request", "body.n", {"n": "two"}),
    ],
)
async def test_refusals_have_vllms_status_type_and_param(
    client: httpx.AsyncClient, status: int, type_: str, param: str, change: dict[str, Any]
) -> None:
    """Also for streams: what is found before generation is a proper status."""
    answer = await client.post("/v1/chat/completions", json={**PARIS, "stream": True, **change})
    error = answer.json()["error"]

    assert (answer.status_code, error["type"], error["param"], error["code"]) == (status, type_, param, status)


async def test_foreign_shapes_404_405_and_bad_json(client: httpx.AsyncClient) -> None:
    """Framework errors have FastAPI's shape, bad JSON is a 400."""
    assert (await client.get("/nope")).json() == {"detail": "Not Found"}
    wrong = await client.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    broken = await client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert (broken.status_code, broken.json()["error"]["type"]) == (400, "Bad Request")
    assert (await client.head("/health")).status_code == 405


async def test_a_client_that_leaves_frees_the_engine_without_a_trace_in_the_metrics(
    simulator: Simulator, client: httpx.AsyncClient
) -> None:
    """Abort on disconnect; request_success does not move, as with vLLM."""
    body = {**PARIS, "stream": True, "max_tokens": 5_000, "ignore_eos": True}
    async with asyncio.timeout(10):
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_bytes():
                break
        await simulator.worker.idle()
    text = (await client.get("/metrics")).text

    assert await metric(client, "vllm:generation_tokens_total") < 5_000
    assert {line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("vllm:request_success_total{")} == {
        "0.0"
    }
    assert (await client.get("/load")).json() == {"server_load": 0}


async def test_a_repeated_prompt_hits_the_prefix_cache_and_salt_parts_it() -> None:
    """cached_tokens is reported with --enable-prompt-tokens-details, and agrees with the counters."""
    options = parse_options(["--served-model-name", "m", "--port", "0", "--enable-prompt-tokens-details"], {})
    body = {"model": "m", "prompt": "p" * 2_000, "max_tokens": 1}
    async with serving(options) as simulator, httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        cached = [
            (await client.post("/v1/completions", json={**body, **extra})).json()["usage"]["prompt_tokens_details"]
            for extra in ({}, {}, {"cache_salt": "a"})
        ]
        hits = await metric(client, "vllm:prefix_cache_hits_total")

    assert [c["cached_tokens"] for c in cached] == [0, 496, 0]
    assert hits == 496


async def test_a_connection_is_kept_between_requests_and_closed_when_idle() -> None:
    """Keep-alive works, and ends by the server after VLLM_HTTP_TIMEOUT_KEEP_ALIVE seconds."""
    options = parse_options(["--port", "0"], {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "0.2"})
    async with asyncio.timeout(10), serving(options) as simulator:
        reader, writer = await asyncio.open_connection("127.0.0.1", simulator.port)
        for _ in range(2):
            writer.write(b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await reader.readuntil(b"}")).endswith(b'{"version":"0.32.0"}')
        assert len(simulator.site.connections) == 1
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_keys_guard_v1_only() -> None:
    """401 has vLLM's third shape; /health and /metrics stay open."""
    options = parse_options(["--served-model-name", "m", "--port", "0"], {"VLLM_API_KEY": "k"})
    async with serving(options) as simulator, httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        refused = await client.get("/v1/models")
        accepted = await client.get("/v1/models", headers={"authorization": "Bearer k"})
        health = await client.get("/health")

    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert (accepted.status_code, health.status_code, health.content) == (200, 200, b"")


async def test_the_queue_limit_is_503(client: httpx.AsyncClient) -> None:
    """--max-num-queued-reqs counts running and waiting."""
    options = parse_options(["--served-model-name", "m", "--port", "0", "--max-num-queued-reqs", "0"], {})
    async with serving(options) as simulator, httpx.AsyncClient(base_url=simulator.url, trust_env=False) as limited:
        answer = await limited.post("/v1/chat/completions", json=PARIS)

    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Service Unavailable")


async def test_a_small_kv_cache_preempts_and_everything_still_finishes() -> None:
    """Preemption by recompute: counted, and no token is lost."""
    options = parse_options(
        ["--served-model-name", "m", "--port", "0", "--sim-kv-tokens", "100", "--sim-itl-ms", "0.2"], {}
    )
    body = {"model": "m", "prompt": "hi", "max_tokens": 60, "ignore_eos": True}
    async with serving(options) as simulator, httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(3)))
        preemptions = await metric(client, "vllm:num_preemptions_total")

    assert [a.json()["usage"]["completion_tokens"] for a in answers] == [60] * 3
    assert preemptions > 0


async def test_embeddings_tokenize_models_version(client: httpx.AsyncClient) -> None:
    """The remaining routes a gateway uses."""
    floats = (await client.post("/v1/embeddings", json={"model": "m", "input": ["a", "b"]})).json()
    packed = (
        await client.post("/v1/embeddings", json={"model": "m", "input": "a", "encoding_format": "base64"})
    ).json()
    tokens = (await client.post("/tokenize", json={"prompt": "eight by"})).json()
    models = (await client.get("/v1/models")).json()["data"]

    assert [d["index"] for d in floats["data"]] == [0, 1]
    assert isinstance(packed["data"][0]["embedding"], str)
    assert (tokens["count"], len(tokens["tokens"])) == (2, 2)
    assert [m["id"] for m in models] == ["m", "alias"]
    assert (await client.get("/version")).json() == {"version": "0.32.0"}


def test_the_command_line_accepts_vllms_flags_and_refuses_removed_and_unknown_ones() -> None:
    """Any vLLM flag may come; a removed one or a misspelt --sim flag is exit code 2, as argparse does."""
    options = parse_options(["--model", "/m", "-tp", "2", "--gpu-memory-utilization", "0.9", "--enforce-eager"], {})
    assert options.names == ("/m",)
    for flag in ("--swap-space", "--sim-nonsense"):
        with pytest.raises(SystemExit) as left:
            parse_options([flag, "3"], {})
        assert left.value.code == 2


VLLM_NAMES = """
vllm:num_requests_running vllm:num_requests_waiting vllm:num_requests_waiting_by_reason vllm:engine_sleep_state
vllm:kv_cache_usage_perc vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:num_preemptions_total
vllm:prompt_tokens_total vllm:prompt_tokens_by_source_total vllm:prompt_tokens_cached_total
vllm:generation_tokens_total vllm:request_success_total vllm:admission_rejections_total vllm:request_prompt_tokens
vllm:request_generation_tokens vllm:iteration_tokens_total vllm:request_max_num_generation_tokens
vllm:request_params_n vllm:request_params_max_tokens vllm:time_to_first_token_seconds vllm:inter_token_latency_seconds
vllm:request_time_per_output_token_seconds vllm:e2e_request_latency_seconds vllm:request_queue_time_seconds
vllm:request_inference_time_seconds vllm:request_prefill_time_seconds vllm:request_decode_time_seconds
vllm:request_num_preemptions vllm:request_prefill_kv_computed_tokens vllm:cache_config_info http_requests_total
process_start_time_seconds
"""


async def test_metrics_have_vllms_names(client: httpx.AsyncClient) -> None:
    """Every name of vLLM 0.32 that a supervisor or dashboard may read is there, once."""
    types = re.findall(r"^# TYPE (\S+) ", (await client.get("/metrics")).text, re.MULTILINE)

    assert set(VLLM_NAMES.split()) <= set(types)
    assert len(types) == len(set(types))
