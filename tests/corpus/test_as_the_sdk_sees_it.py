"""Corpus cases where the OpenAI SDK is the judge: what it makes of an answer that came through the gateway."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import openai
import pytest
from openai.types.responses import ResponseErrorEvent

from gateway.proxy.policy import RelayPolicy
from gateway.types import ModelView, Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.message_frames import ResponsesStream
from loadtest.servers.steps import Reset
from tests.corpus.expectations import sdk
from tests.corpus.relayed import Relay
from tests.corpus.specimens import NAMES, base64_vector, three_choices, tool_stream

pytestmark = pytest.mark.anyio


async def test_c54_parallel_tool_calls_are_put_together(relay: Relay) -> None:
    """The SDK's accumulator, which chokes on missing or repeated indexes, finds both calls whole."""
    async with FaultServer(scripts.stream(tool_stream())) as worker, relay(worker) as gate, sdk(gate.port) as client:
        async with client.chat.completions.stream(model="sim", messages=[{"role": "user", "content": "hi"}]) as stream:
            completion = await stream.get_final_completion()

        choice = completion.choices[0]
        calls = choice.message.tool_calls or []
        assert [("forecast", "call_0"), ("search", "call_1")] == [(call.function.name, call.id) for call in calls]
        assert {"city": "안녕 😀", "days": [1, 2, 3]} == json.loads(calls[0].function.arguments)
        assert {"q": 'a"b', "limit": 10} == json.loads(calls[1].function.arguments)
        assert ("tool_calls", "assistant") == (choice.finish_reason, choice.message.role)


async def test_c55_choices_are_put_together(relay: Relay) -> None:
    """Three interleaved choices, each with its own text."""
    events, texts = three_choices(3)
    script = scripts.stream([*events, frames.DONE])
    async with FaultServer(script) as worker, relay(worker) as gate, sdk(gate.port) as client:
        found = ["", "", ""]
        async for chunk in await client.chat.completions.create(model="sim", messages=[], n=3, stream=True):
            found[chunk.choices[0].index] += chunk.choices[0].delta.content or ""

        assert texts == found


async def test_c61_vectors_are_decoded(relay: Relay) -> None:
    """The SDK asks for base64 by default and decodes what it gets."""
    vectors = [[0.25, -0.5, 3.0e-8], [1.0, 2.0**-149, -0.0]]
    body = frames.embeddings_body([base64_vector(vector) for vector in vectors])
    async with FaultServer(scripts.answer(200, body)) as worker, relay(worker) as gate, sdk(gate.port) as client:
        answer = await client.embeddings.create(model="sim", input=["a", "b"])

        expected = [list(struct.unpack("<3f", struct.pack("<3f", *vector))) for vector in vectors]
        assert expected == [entry.embedding for entry in answer.data]
        assert "base64" == worker.requests[0].json()["encoding_format"]


async def test_c64_hostile_ids_are_retrieved(relay: Relay) -> None:
    """Every id that the SDK is willing to ask for."""
    models = tuple(ModelView(name, (), 1) for name in NAMES)
    async with (
        FaultServer(scripts.models_json()) as worker,
        relay(worker, models=models) as gate,
        sdk(gate.port) as client,
    ):
        for name in NAMES:
            assert name == (await client.models.retrieve(name)).id
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("nope")

        assert "model_not_found" == caught.value.code
        assert [] == worker.requests


async def test_c72_an_error_reads_well(relay: Relay) -> None:
    """Class, message, type, code and param are there, whatever the worker's shape was."""
    for script in (scripts.ERRORS["not-found"], scripts.ERRORS["unknown-model"], scripts.ERRORS["bad-request"]):
        async with FaultServer(script) as worker, relay(worker) as gate, sdk(gate.port) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(model="sim", messages=[])

            error = caught.value
            assert "invalid_request_error" == error.type
            assert error.code is None or not error.code.isdigit()
            assert isinstance(error.body, dict)
            assert error.body["message"]
            assert error.request_id


async def test_c73_a_413_is_seen_as_one(relay: Relay) -> None:
    """Not as a broken connection, although the client was still sending."""

    def limited(policy: RelayPolicy) -> RelayPolicy:
        return replace(policy, max_body_bytes=1024 * 1024)

    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, relay_policy=limited) as gate,
        sdk(gate.port) as client,
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(
                model="sim", messages=[{"role": "user", "content": "x" * (20 * 1024 * 1024)}]
            )

        assert (413, "request_too_large") == (caught.value.status_code, caught.value.code)
        assert [] == worker.requests


async def test_c86_a_cut_responses_stream_is_an_error_event(relay: Relay) -> None:
    """The SDK hands the failure to its user as an event of the API's own, not as a missing completion only."""
    events = ResponsesStream().events()[:6]
    async with (
        FaultServer(scripts.stream(events, end=Reset())) as worker,
        relay(worker) as gate,
        sdk(gate.port) as client,
    ):
        found = [event async for event in await client.responses.create(model="sim", input="hi", stream=True)]

        assert isinstance(found[-1], ResponseErrorEvent)
        assert ResponseErrorEvent.model_validate(found[-1].model_dump(), strict=True)
        assert [*range(7)] == [event.sequence_number for event in found]
        await gate.ended(Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_INCOMPLETE)


async def test_c86_the_sdks_helper_shows_the_error_too(relay: Relay) -> None:
    """`responses.stream()` yields the error before it complains that nothing was completed."""
    events = ResponsesStream().events()[:6]
    async with (
        FaultServer(scripts.stream(events, end=Reset())) as worker,
        relay(worker) as gate,
        sdk(gate.port) as client,
    ):
        async with client.responses.stream(model="sim", input="hi") as stream:
            kinds = [event.type async for event in stream]

        assert "error" == kinds[-1]
        assert "response.completed" not in kinds
