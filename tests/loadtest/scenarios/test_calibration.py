"""Calibration: exact where the target can count, a mean where it cannot, a note where it says nothing."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from loadtest.scenarios.base import Request
from loadtest.scenarios.calibration import Calibration, calibrate
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.simulation.options import SimulatorOptions
from loadtest.servers.simulator import serving
from loadtest.servers.steps import Script
from loadtest.target import parse_target
from tests.loadtest.scenarios.sessions import contents, made, requests_of

pytestmark = pytest.mark.anyio

FAST = SimulatorOptions(names=("m",), itl_ms=0.2, itl_ms_per_seq=0, prefill_ms_per_token=0)


async def calibrated(url: str, **options: Any) -> Calibration:
    """In a thread, since it blocks and the server is in this loop."""
    return await asyncio.to_thread(calibrate, parse_target(url), "m", None, **options)


async def usage(url: str, request: Request) -> dict[str, Any]:
    """What the server counts for this request, asked without a stream."""
    body = {**json.loads(request.body), "stream": False}
    body.pop("stream_options", None)
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(url + request.path, json=body)
    value: dict[str, Any] = answer.raise_for_status().json()["usage"]
    return value


async def test_with_tokenize_lengths_are_exact() -> None:
    """Prompts of every shape have the tokens they were asked to have, template included; answers too."""
    async with serving(FAST) as simulator:
        found = await calibrated(simulator.url, salt="s")
        chat = requests_of(made("chat", found.context, prompt_tokens="100", output_tokens="9"))[0]
        shared = requests_of(made("shared-prompt", found.context, system_tokens="200", question_tokens="50"))[0]
        turns = requests_of(made("multi-turn", found.context), text="yes yes yes")
        counted = [await usage(simulator.url, request) for request in (chat, shared, turns[0], turns[3])]

    scale = found.context.scale
    assert ("tokenize", 1.0, True, 8192, ()) == (
        scale.source,
        scale.tokens_per_word,
        found.context.forces_length,
        found.context.max_model_len,
        found.notes,
    )
    assert found.probes < 30
    assert (100, 9) == (counted[0]["prompt_tokens"], counted[0]["completion_tokens"])
    assert counted[1]["prompt_tokens"] == pytest.approx(scale.prompt_tokens((200, 50), system=True), abs=1)
    assert counted[2]["prompt_tokens"] == pytest.approx(128 + scale.chat_tokens, abs=1)
    assert counted[3]["prompt_tokens"] == pytest.approx(scale.prompt_tokens((128, 3, 48, 3, 48, 3, 48)), abs=3)


class WithoutTokenize:
    """A server that counts five tokens for a template and one and a half for each word, and takes no vLLM field."""

    def __init__(self, *, usage: bool = True) -> None:
        self._usage = usage

    def __call__(self, request: RecordedRequest) -> Script:
        """404 for what it does not have, 400 for what it does not know."""
        if request.path == "/v1/models":
            return scripts.models_json(["m"])
        if request.path != "/v1/chat/completions":
            return scripts.answer(404, {"detail": "Not Found"})
        body = json.loads(request.body)
        if "ignore_eos" in body:
            return scripts.answer(400, {"error": {"message": "unknown field"}})
        words = sum(len(m["content"].split()) for m in body["messages"])
        counted = {"prompt_tokens": 5 * len(body["messages"]) + round(1.5 * words), "completion_tokens": 1}
        return scripts.answer(200, {"choices": [], **({"usage": counted} if self._usage else {})})


async def test_without_tokenize_the_usage_of_two_prompts_gives_a_mean() -> None:
    """Lengths are right on average, and the settings tell where they come from."""
    async with FaultServer(WithoutTokenize()) as server:
        found = await calibrated(server.url, continuous_usage=True)
        requests = len(server.requests)

    context = found.context
    assert ("usage", pytest.approx(1.5, abs=0.01)) == (context.scale.source, context.scale.tokens_per_word)
    assert (5, 5, 10) == pytest.approx(
        (context.scale.chat_tokens, context.scale.system_tokens, context.scale.turn_tokens), abs=1.5
    )
    assert not context.forces_length
    assert not context.continuous_usage, "whoever does not take ignore_eos does not take that either"
    assert "answers end when the model ends them" in found.notes[0]
    text = contents(requests_of(made("chat", context, prompt_tokens="305"))[0])[0]
    assert round((305 - context.scale.chat_tokens) / 1.5) == pytest.approx(len(text.split()), abs=1)
    assert found.probes == requests < 10


async def test_a_target_that_tells_nothing_gets_assumed_lengths_and_a_note() -> None:
    """A calibration never ends a run: what is wrong will show in the run's own books."""
    async with FaultServer(WithoutTokenize(usage=False)) as server:
        silent = await calibrated(server.url)
    gone = await calibrated(server.url)

    for found in (silent, gone):
        assert "assumed" == found.context.scale.source
        assert "lengths are assumed" in " ".join(found.notes)
    assert "Connection refused" in gone.notes[0]
    assert json.loads(json.dumps(gone.to_json()))["source"] == "assumed"


async def test_embeddings_are_calibrated_on_their_own_route() -> None:
    """No generation is tried, which a pooling model would refuse."""
    async with serving(SimulatorOptions(names=("m",), pooling=True)) as simulator:
        found = await calibrated(simulator.url, family="embeddings")
        request = requests_of(made("embeddings", found.context, inputs="3", input_tokens="40"))[0]
        counted = await usage(simulator.url, request)

    assert ("tokenize", ()) == (found.context.scale.source, found.notes)
    assert 120 == counted["prompt_tokens"]


async def test_words_that_are_not_one_token_are_left_out() -> None:
    """The simulator's tokens are four bytes: what stays are the words of three letters, which with a space are four."""
    async with serving(FAST) as simulator:
        scale = (await calibrated(simulator.url)).context.scale

    assert {3} == set(map(len, scale.words))
    assert 3 * 300 + 299 == len(scale.text(random.Random(1), 300).encode())
