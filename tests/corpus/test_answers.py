"""Answers: what the worker wrote reaches the client byte for byte, but for a usage event that nobody asked for."""

from __future__ import annotations

import base64
import json
import struct
from collections import defaultdict
from typing import Any

import pytest

from gateway.proxy.policy import ModelPolicy
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.frames import compact, data_event
from loadtest.servers.http1 import JSON, response_head
from loadtest.servers.message_frames import MessagesStream, ResponsesStream
from loadtest.servers.steps import Fin, Gate, Reset, Send, Step
from tests.corpus.envelopes import error_event_of, error_of
from tests.corpus.relayed import Relay
from tests.corpus.specimens import STREAM, base64_vector, three_choices, tool_stream
from tests.proxy.raw_client import CHAT, Answer, ask, chat, post
from tests.proxy.served import model_policy

pytestmark = pytest.mark.anyio

USAGE = {"stream_options": {"include_usage": True}}
FAILED = (Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_INCOMPLETE)


def payloads(answer: Answer) -> list[dict[str, Any]]:
    """The JSON of every event but the marker."""
    return [json.loads(event.removeprefix(b"data: ")) for event in answer.events if event != frames.DONE]


@pytest.mark.parametrize("cut_every", [0, 7])
async def test_c54_parallel_tool_calls_keep_index_and_order(relay: Relay, cut_every: int) -> None:
    """Nothing is merged, split or said twice; each call's pieces add up to its arguments."""
    events = tool_stream()
    async with FaultServer(scripts.stream(events, cut_every=cut_every)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(tools=[{"type": "function", "function": {"name": "search"}}])))

        assert b"".join(events) == answer.body
        arguments: defaultdict[int, str] = defaultdict(str)
        names: defaultdict[int, list[str]] = defaultdict(list)
        for payload in payloads(answer):
            for call in payload["choices"][0]["delta"].get("tool_calls", ()):
                arguments[call["index"]] += call["function"]["arguments"]
                names[call["index"]] += [call["function"]["name"]] if "name" in call["function"] else []
        assert {0: ["forecast"], 1: ["search"]} == names
        assert {"city": "안녕 😀", "days": [1, 2, 3]} == json.loads(arguments[0])
        assert {"q": 'a"b', "limit": 10} == json.loads(arguments[1])
        record = await gate.ended(Outcome.OK)
        assert record is None or record.finish_reasons == ("tool_calls",)


@pytest.mark.parametrize("seed", range(5))
async def test_c55_choices_keep_their_index(relay: Relay, seed: int) -> None:
    """Whatever the interleaving, order and index are the worker's, and all finish reasons are known at the end."""
    events, texts = three_choices(seed)
    async with FaultServer(scripts.stream([*events, frames.DONE])) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(n=3)))

        assert b"".join([*events, frames.DONE]) == answer.body
        found: defaultdict[int, str] = defaultdict(str)
        for payload in payloads(answer):
            for choice in payload["choices"]:
                found[choice["index"]] += choice["delta"].get("content") or ""
        assert texts == [found[index] for index in range(3)]
        record = await gate.ended(Outcome.OK)
        assert record is None or record.finish_reasons == ("stop",) * 3


@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_c55_an_answer_is_complete_only_with_all_choices(relay: Relay, missing: int) -> None:
    """Two of three finish reasons and a proper end of the body are a failure, told to the client."""
    events, _ = three_choices(0)
    kept = [event for event in events if event != STREAM.finish(index=missing)]
    async with FaultServer(scripts.clean_truncation(kept)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(n=3)))

        assert kept == answer.events[:-1]
        assert "error" in error_event_of(answer.events[-1])
        await gate.ended(*FAILED)


REASONS = ["stop", "length", "tool_calls", "content_filter", "function_call", "repetition", "x_new"]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c56_finish_reasons_are_the_workers(relay: Relay, reason: str, stream: bool) -> None:
    """Known or not, and with vLLM's `stop_reason` beside it."""
    events = [STREAM.role(), STREAM.finish(reason).replace(b'"stop_reason":null', b'"stop_reason":128009'), frames.DONE]
    body = compact(frames.chat_body("x", finish=reason)).replace(b'"stop_reason":null', b'"stop_reason":"</s>"')
    script = scripts.stream(events) if stream else scripts.answer(200, body)
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=stream)))

        assert (b"".join(events) if stream else body) == answer.body
        record = await gate.ended(Outcome.OK)
        assert record is None or record.finish_reasons == (reason,)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("cut_every", [0, 1, 7])
async def test_c56_an_abort_is_relayed_and_told(relay: Relay, end: bytes, cut_every: int) -> None:
    """vLLM's `abort` that nobody asked for: the event as it came, then what it means; never a good end, in any cut."""
    events = [event.replace(b"\n", end) for event in (STREAM.role(), STREAM.content("a"), STREAM.finish("abort"))]
    done = frames.DONE.replace(b"\n", end)
    async with FaultServer(scripts.stream([*events, done], cut_every=cut_every)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        relayed = b"".join(events)
        assert relayed == answer.body[: len(relayed)]
        assert "error" in error_event_of(answer.body[len(relayed) :])
        assert answer.complete
        await gate.ended(Outcome.UPSTREAM_INCOMPLETE)


async def test_c56_an_abort_of_a_plain_answer_is_no_answer(relay: Relay) -> None:
    """Not streamed it can still be asked of another worker; with none left it is a failure, not a short success."""
    aborted = scripts.answer(200, frames.chat_body("Par", finish="abort"))
    async with FaultServer(aborted) as worker, FaultServer(scripts.chat_json()) as other, relay(worker, other) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=False)))

        assert (200, "stop") == (answer.status, answer.json()["choices"][0]["finish_reason"])
        assert [1, 1] == [len(worker.requests), len(other.requests)]
    async with FaultServer(aborted) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=False)))

        error_of(answer, 502)
        await gate.ended(Outcome.UPSTREAM_INCOMPLETE)


@pytest.mark.parametrize("case", ["whole", "silence", "reset", "flat-error", "idle", "abort"])
async def test_c57_the_gateway_makes_no_chunks(relay: Relay, case: str) -> None:
    """
    Whatever the gateway adds to a stream is a comment or an error object: no choice, role or delta of its own.

    So the role comes once, and id, created and model are the worker's throughout.
    """
    events = STREAM.events(usage=False)
    cut = events[:3]
    script = {
        "whole": scripts.stream(events),
        "silence": scripts.stream([*cut, Gate("never")]),
        "reset": scripts.stream(cut, end=Reset()),
        "flat-error": scripts.stream([*cut, frames.flat_error_event(), frames.DONE]),
        "idle": scripts.stream([*cut, Gate("never")]),
        "abort": scripts.stream([*cut, STREAM.finish("abort"), frames.DONE]),
    }[case]
    limits = model_policy(idle_s=0.3).limits if case in ("idle", "silence") else ModelPolicy().limits
    policy = ModelPolicy(limits=limits, heartbeat_s=0.1 if case == "silence" else 0)
    async with FaultServer(script) as worker, relay(worker, policy=policy) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert answer.complete
        added = [event for event in answer.events if event not in events]
        relayed = [event for event in answer.events if event in events]
        assert events[: len(relayed)] == relayed
        assert 1 == answer.body.count(b'"role"')
        for event in added:
            comment = event.startswith(b":")
            assert comment or event == STREAM.finish("abort") or {"error"} == set(error_event_of(event))
        assert (case == "whole") == (not added)


@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}]
)
@pytest.mark.parametrize("cut_every", [0, 11])
async def test_c58_usage_nobody_asked_for_is_not_shown(relay: Relay, options: dict[str, Any], cut_every: int) -> None:
    """The worker is asked for usage and it is recorded; the client's `choices[0]` loop never meets an empty list."""
    events = STREAM.events()
    async with FaultServer(scripts.stream(events, cut_every=cut_every)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(**options)))

        assert STREAM.events(usage=False) == answer.events
        assert [True] * 5 == [bool(payload["choices"][0]) for payload in payloads(answer)]
        record = await gate.ended(Outcome.OK)
        assert record is None or (22, 3) == (record.prompt_tokens, record.output_tokens)
        assert record is None or worker.requests[0].json()["stream_options"]["include_usage"] is True


@pytest.mark.parametrize("cut_every", [0, 11])
async def test_c58_usage_that_was_asked_for_comes_once_and_last(relay: Relay, cut_every: int) -> None:
    """Exactly one usage event, directly before the marker."""
    events = STREAM.events()
    async with FaultServer(scripts.stream(events, cut_every=cut_every)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(**USAGE)))

        assert events == answer.events
        assert [False] * 5 + [True] == ["usage" in payload for payload in payloads(answer)]
        record = await gate.ended(Outcome.OK)
        assert record is None or (22, 3) == (record.prompt_tokens, record.output_tokens)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("cut_every", [0, 1, 13])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_c58_in_any_line_ends_and_cuts(relay: Relay, end: bytes, cut_every: int, path: str) -> None:
    """The usage event is found, and only it goes, however the worker or a proxy before it writes lines."""
    family = STREAM if path == CHAT else frames.CompletionStream()
    events = [event.replace(b"\n", end) for event in family.events()]
    without = b"".join([*events[:-2], events[-1]])
    async with FaultServer(scripts.stream(events, cut_every=cut_every)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(path, {**chat(), "prompt": "x"}))

        assert without == answer.body
        assert answer.complete
        record = await gate.ended(Outcome.OK)
        assert record is None or record.output_tokens == 3


async def test_c58_continuous_usage_alone_is_not_turned_on(relay: Relay) -> None:
    """vLLM ignores `continuous_usage_stats` without `include_usage`; forcing the one must not wake the other."""
    async with FaultServer(scripts.chat_stream()) as worker, relay(worker) as gate:
        await ask(gate.port, post(CHAT, chat(stream_options={"continuous_usage_stats": True})))

        assert worker.requests[0].json()["stream_options"].get("continuous_usage_stats") in (None, False)


async def test_c59_a_usage_event_without_choices_is_read(relay: Relay) -> None:
    """It passes as it is, and its tokens count."""
    usage = data_event(compact({"id": "x", "object": "chat.completion.chunk", "usage": frames.usage_info(7, 3)}))
    events = [*STREAM.events(usage=False)[:-1], usage, frames.DONE]
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(**USAGE)))

        assert events == answer.events
        record = await gate.ended(Outcome.OK)
        assert record is None or (7, 3) == (record.prompt_tokens, record.output_tokens)


@pytest.mark.parametrize("encoding", ["base64", "float", "int8", None])
async def test_c61_embeddings_keep_their_encoding(relay: Relay, encoding: str | None) -> None:
    """The encoding asked for reaches the worker, and its vectors the client, unread."""
    vectors = [[0.25, -0.5, 3.0e-8], [1.0, float(2**-149), -0.0]]
    encoded = [base64_vector(vector) for vector in vectors] if encoding == "base64" else vectors
    body = compact(frames.embeddings_body(encoded))
    request = {"model": "sim", "input": ["a", "b"]} | ({"encoding_format": encoding} if encoding else {})
    async with FaultServer(scripts.answer(200, body)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post("/v1/embeddings", request))

        assert body == answer.body
        assert compact(request) == worker.requests[0].body
        found = [entry["embedding"] for entry in answer.json()["data"]]
        if encoding == "base64":
            floats = [struct.unpack("<3f", base64.b64decode(text)) for text in found]
            assert [struct.unpack("<3f", struct.pack("<3f", *vector)) for vector in vectors] == floats
        record = await gate.ended(Outcome.OK)
        assert record is None or (4, 0) == (record.prompt_tokens, record.output_tokens)


async def test_c61_many_embeddings_stay_in_order(relay: Relay) -> None:
    """2048 inputs, an answer of a megabyte: every byte, index by index."""
    vectors = [base64_vector([float(number)] * 96) for number in range(2048)]
    body = compact(frames.embeddings_body(vectors))
    request = {"model": "sim", "input": [f"text {number}" for number in range(2048)], "encoding_format": "base64"}
    async with FaultServer(scripts.answer(200, body)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post("/v1/embeddings", request))

        assert body == answer.body
        assert answer.complete
        data = answer.json()["data"]
        assert list(range(2048)) == [entry["index"] for entry in data]
        assert compact(request) == worker.requests[0].body
        record = await gate.ended(Outcome.OK)
        assert record is None or record.prompt_tokens == 4


@pytest.mark.parametrize("end", [Reset(), Fin()], ids=["reset", "fin"])
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_c61_a_cut_answer_is_not_a_whole_one(relay: Relay, end: Step, framing: str) -> None:
    """Vectors that stop half-way: either a 502, or an answer whose framing is broken so that no client can use it."""
    body = compact(frames.embeddings_body([base64_vector([float(number)] * 96) for number in range(2048)]))
    half = body[: len(body) // 2]
    if framing == "chunked":
        cut = scripts.stream([half], headers=JSON, end=end)
    else:
        cut = (Send(response_head(200, (*JSON, ("content-length", str(len(body)))))), Send(half), end)
    async with FaultServer(cut) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post("/v1/embeddings", {"model": "sim", "input": "x"}))

        assert not answer.complete or answer.status == 502
        assert body != answer.body
        await gate.ended(*FAILED)


@pytest.mark.parametrize("number", [b"-Infinity", b"NaN", b"Infinity", b"-9999.0", b"1e400"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c62_odd_numbers_are_no_failure(relay: Relay, number: bytes, stream: bool) -> None:
    """The gateway neither re-serialises nor fails on what it reads; tokens are counted all the same."""
    logprobs = b'"logprobs":{"content":[{"token":"a","logprob":%b}]}' % number
    events = [event.replace(b'"logprobs":null', logprobs) for event in STREAM.events()]
    body = compact(frames.chat_body("x")).replace(b'"logprobs":null', logprobs)
    script = scripts.stream(events) if stream else scripts.answer(200, body)
    # An alias makes the gateway rewrite the request; the answer stays as it is.
    request = {**chat(stream=stream, logprobs=True, top_logprobs=1, top_k=1, echo=True), "model": "alias"}
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, request | (USAGE if stream else {})))

        assert (b"".join(events) if stream else body) == answer.body
        record = await gate.ended(Outcome.OK)
        assert record is None or (22, 3) == (record.prompt_tokens, record.output_tokens)


ALIASED = {
    "chat": (CHAT, True, scripts.chat_stream),
    "chat-plain": (CHAT, False, scripts.chat_json),
    "completions": ("/v1/completions", True, scripts.completion_stream),
    "completions-plain": ("/v1/completions", False, scripts.completion_json),
    "responses": ("/v1/responses", True, scripts.responses_stream),
    "responses-plain": ("/v1/responses", False, scripts.responses_json),
    "messages": ("/v1/messages", True, scripts.messages_stream),
    "messages-plain": ("/v1/messages", False, scripts.messages_json),
    "embeddings": ("/v1/embeddings", False, scripts.embeddings_json),
}


@pytest.mark.parametrize("name", ALIASED)
async def test_c63_an_alias_is_answered_under_the_models_name(relay: Relay, name: str) -> None:
    """
    The policy: the worker is asked for the model by its public name, and answers carry that name, streamed or not.

    Nothing in an answer is ever rewritten, so text that contains either name cannot be damaged.
    """
    path, stream, script = ALIASED[name]
    request = {"model": "alias", "messages": [], "input": "alias sim", "stream": stream, "x": "alias"}
    async with FaultServer(script()) as worker, relay(worker) as gate:
        direct = await ask(worker.port, post(path, {**request, "model": "sim"} | USAGE))
        answer = await ask(gate.port, post(path, request | USAGE))

        expected = compact(request | USAGE).replace(b'"model":"alias"', b'"model":"sim"', 1)
        assert expected == worker.requests[1].body
        assert direct.body == answer.body
        assert b'"model":"sim"' in answer.body
        record = await gate.ended(Outcome.OK)
        assert record is None or record.model == "sim"


async def test_c63_text_with_a_name_in_it_is_left_alone(relay: Relay) -> None:
    """Names inside of the content, in both directions."""
    text = 'the "model":"alias" and "model":"sim"'
    events = STREAM.events([text, text], usage=False)
    request = {**chat(), "model": "alias", "messages": [{"role": "user", "content": text, "model": "alias"}]}
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, request))

        assert events == answer.events
        assert request["messages"] == worker.requests[0].json()["messages"]
        assert "sim" == worker.requests[0].json()["model"]


async def test_c63_errors_name_no_path_of_the_model(relay: Relay) -> None:
    """vLLM names the model and the folder it was loaded from; only the public name may go out."""
    message = "The model `sim` does not exist. Valid aliases: /srv/models/internal-7b/weights"
    async with FaultServer(scripts.error(404, message, "NotFoundError", "model")) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, {**chat(), "model": "alias"}))

        assert "model_not_found" == error_of(answer, 404)["code"]
        assert b"internal-7b" not in answer.body


@pytest.mark.parametrize("cut_every", [0, 13])
async def test_c85_responses_events_are_the_workers(relay: Relay, cut_every: int) -> None:
    """All events of a native stream, with every detail of usage that strict clients need."""
    events = ResponsesStream().events()
    async with FaultServer(scripts.stream(events, cut_every=cut_every)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post("/v1/responses", {"model": "sim", "input": "hi", "stream": True}))

        assert b"".join(events) == answer.body
        last = json.loads(answer.events[-1].partition(b"data: ")[2])
        assert "response.completed" == last["type"]
        assert {"reasoning_tokens": 0} == last["response"]["usage"]["output_tokens_details"]
        assert {"cached_tokens": 0} == last["response"]["usage"]["input_tokens_details"]
        record = await gate.ended(Outcome.OK)
        assert record is None or (22, 3) == (record.prompt_tokens, record.output_tokens)


async def test_c85_other_families_are_relayed_natively_too(relay: Relay) -> None:
    """Anthropic's events, with names and order."""
    events = MessagesStream().events()
    async with FaultServer(scripts.stream(events)) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post("/v1/messages", {"model": "sim", "max_tokens": 9, "stream": True}))

        assert b"".join(events) == answer.body
        await gate.ended(Outcome.OK)
