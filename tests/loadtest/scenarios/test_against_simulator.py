"""Every scenario's requests as the simulated worker sees them: accepted, counted, cached where they should be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.outcomes import Outcome
from loadtest.scenarios import scenarios
from loadtest.scenarios.base import Answer, Context, Scenario, session_rng
from loadtest.scenarios.calibration import calibrate
from loadtest.servers.simulation.options import SimulatorOptions
from loadtest.servers.simulator import Simulator, serving
from loadtest.target import parse_target
from tests.loadtest.scenarios.sessions import MOONCAKE, made

pytestmark = pytest.mark.anyio

OPTIONS = SimulatorOptions(
    names=("m",), itl_ms=0.1, itl_ms_per_seq=0, prefill_ms_per_token=0, prompt_tokens_details=True
)
SMALL = {
    "shared-prompt": {"output_tokens": "8"},
    "rag": {"output_tokens": "8"},
    "embeddings": {"inputs": "2"},
    "multi-turn": {"output_tokens": "8"},
}


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with serving(OPTIONS) as running:
        yield running


@pytest.fixture
async def context(simulator: Simulator) -> Context:
    return (await asyncio.to_thread(calibrate, parse_target(simulator.url), "m", None, salt="s")).context


async def played(url: str, scenario: Scenario, sessions: int) -> list[dict[str, Any]]:
    """The usage of each request, sessions one after another; cancelled ones are read to their end."""
    found = []
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
        for number in range(sessions):
            session = scenario.session(session_rng(1, number), number)
            request = next(session, None)
            while request is not None:
                answer = await client.post(
                    request.path, content=request.body, headers={"content-type": "application/json"}
                )
                assert 200 == answer.status_code, answer.text
                usage, text = read(answer.text)
                found.append(usage)
                try:
                    request = session.send(Answer(text, Outcome.OK))
                except StopIteration:
                    request = None
    return found


def read(body: str) -> tuple[dict[str, Any], str]:
    """Usage and visible text of a whole answer or a stream."""
    if not body.startswith("data: "):
        return json.loads(body)["usage"], ""
    events = [json.loads(e.removeprefix("data: ")) for e in body.split("\n\n") if e and not e.endswith("[DONE]")]
    text = [c["delta"].get("content") or "" for e in events for c in e["choices"]]
    return events[-1]["usage"], "".join(text)


def cached(usage: dict[str, Any]) -> int:
    """Prompt tokens that came from the prefix cache."""
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("name", scenarios())
async def test_every_request_is_accepted(simulator: Simulator, context: Context, name: str, tmp_path: Path) -> None:
    """With its defaults; nothing is refused as malformed or too long, and answers have the forced length."""
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    options = {"file": str(tmp_path / "trace.jsonl")} if name == "replay" else SMALL.get(name, {})
    found = await played(simulator.url, made(name, context, **options), 3)

    assert len(found) >= 3
    assert all(usage["prompt_tokens"] > 0 for usage in found)


async def test_nothing_is_cached_where_nothing_is_shared(simulator: Simulator, context: Context) -> None:
    """Also when the same run is started again, with a salt of its own."""
    for salt in ("one", "two"):
        scenario = made("chat", Context("m", context.scale, salt, 8192, True), output_tokens="2")
        found = await played(simulator.url, scenario, 10)
        assert {0} == {cached(usage) for usage in found}


async def test_a_shared_system_prompt_is_cached_from_the_second_question_on(
    simulator: Simulator, context: Context
) -> None:
    """All but what the questions differ in, to the block."""
    scenario = made("shared-prompt", context, system_tokens="512", question_tokens="32", output_tokens="2")
    first, *later = await played(simulator.url, scenario, 6)

    assert 0 == cached(first)
    assert {512} == {cached(usage) for usage in later}


async def test_a_conversation_is_cached_up_to_its_last_answer(simulator: Simulator, context: Context) -> None:
    """The third turn finds the first two."""
    scenario = made("multi-turn", context, turns="3", output_tokens="8")
    first, second, third = await played(simulator.url, scenario, 1)

    assert 0 == cached(first)
    assert first["prompt_tokens"] - 16 <= cached(second) < second["prompt_tokens"]
    assert second["prompt_tokens"] - 16 <= cached(third) < third["prompt_tokens"]


async def test_repeated_blocks_of_a_trace_are_cached_as_they_were(
    simulator: Simulator, context: Context, tmp_path: Path
) -> None:
    """Two of three blocks of 512 are the same."""
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    first, second = await played(simulator.url, made("replay", context, file=str(tmp_path / "trace.jsonl")), 2)

    assert (0, 1024) == (cached(first), cached(second))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("choice", "reason"), [("named", "stop"), ("required", "tool_calls"), ("auto", None)])
async def test_the_simulator_calls_the_tool_it_must(
    simulator: Simulator, context: Context, choice: str, reason: str | None, stream: bool
) -> None:
    """Arguments come in pieces that make up one JSON object; with auto it answers in prose. Reasons are vLLM's."""
    session = made("tools", context, choice=choice).session(session_rng(1, 0), 0)
    body = {**json.loads(next(session).body), "stream": stream}
    if not stream:
        del body["stream_options"]
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status()
    if stream:
        events = [json.loads(e.removeprefix("data: ")) for e in answer.text.split("\n\n")[:-2]]
        choices = [c for e in events for c in e["choices"]]
        calls = [t["function"] for c in choices for t in c["delta"].get("tool_calls") or ()]
    else:
        choices = answer.json()["choices"]
        calls = [t["function"] for t in choices[0]["message"]["tool_calls"]]

    names = [c["name"] for c in calls if "name" in c]
    assert bool(calls) is (reason is not None)
    if reason is not None:
        assert reason == choices[-1]["finish_reason"]
        assert 1 == len(names)
        assert names[0] in [t["function"]["name"] for t in body["tools"]]
        assert {"place"} == set(json.loads("".join(c["arguments"] for c in calls)))
