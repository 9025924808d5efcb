"""What a trace shows of a request, from a client's context over the gateway's spans to the worker's headers."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from gateway.tracing import Tracing, TracingSetup, open_tracing
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Stall
from tests.proxy.raw_client import CHAT, ask, chat, connect, post
from tests.proxy.served import gateway
from tests.tracing.collector import Collector, Received

pytestmark = pytest.mark.anyio

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FROM_CLIENT = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=opaque,other=1"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
GOOD = scripts.chat_stream()


def context_of(headers: list[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers if name.lower() in ("traceparent", "tracestate")}


def parent_of(headers: list[tuple[str, str]]) -> tuple[str, str]:
    """Trace and span that a worker was told, sampled (the flag 02 says that the trace id is random)."""
    version, trace, span, flags = context_of(headers)["traceparent"].split("-")
    assert ("00", 1) == (version, int(flags, 16) & 1)
    return trace, span


def subset(span: Received, *names: str) -> dict[str, Any]:
    return {name: span.attributes.get(name) for name in names}


async def test_a_request_is_a_server_span_and_each_attempt_a_client_span_below_it(
    collector: Collector, tracing: Tracing
) -> None:
    """Attempts are siblings; each worker gets the context of its own attempt."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.ERRORS["busy"]) as busy,
        FaultServer(GOOD) as well,
        gateway(busy, well, tracer=tracing.tracer) as served,
    ):
        await ask(served.port, post(CHAT, chat()))
        await served.idle()
        server, first, second = await asyncio.to_thread(collector.wait, 3)
        told = [parent_of(worker.requests[0].headers) for worker in (busy, well)]
        known_by = [worker.requests[0].header("x-request-id") for worker in (busy, well)]

    assert ("POST /v1/chat/completions", "server", "") == (server.name, server.kind, server.parent)
    assert [("chat sim", "client", server.id)] * 2 == [(each.name, each.kind, each.parent) for each in (first, second)]
    assert {server.trace} == {first.trace, second.trace}
    assert [(server.trace, first.id), (server.trace, second.id)] == told
    assert known_by == [each.attributes["gateway.upstream_request_id"] for each in (first, second)]
    assert ("status_503", 503, True) == (
        first.attributes["error.type"],
        first.attributes["http.response.status_code"],
        first.error,
    )
    assert ("error.type" in second.attributes, second.error, server.error) == (False, False, False)
    assert ["w0", "w1"] == [each.attributes["gateway.worker"] for each in (first, second)]
    assert [0, 1] == [each.attributes["http.request.resend_count"] for each in (first, second)]
    assert server.began <= first.began <= first.ended <= second.began <= second.ended <= server.ended
    assert {"service.name": "vllm-gateway", "service.version": "1.2.3", "service.instance.id": "here/0"} == (
        server.resource
    )


async def test_a_stream_s_spans_follow_the_conventions_for_generative_ai(
    collector: Collector, tracing: Tracing
) -> None:
    """Operation, provider, model, usage, finish reason, and when the first token went out; no prompt, no answer."""
    async with (
        asyncio.timeout(20),
        FaultServer(GOOD) as worker,
        gateway(worker, tracer=tracing.tracer) as served,
    ):
        await ask(served.port, post(CHAT, {**chat(), "messages": [{"role": "user", "content": "a secret"}]}))
        record = await served.records.record()
        server, client = await asyncio.to_thread(collector.wait, 2)

    assert {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "sim",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.server.time_to_first_token": record.ttft_s,
        "gateway.outcome": "ok",
        "gateway.request_id": record.request_id,
        "gateway.stream": True,
        "gateway.worker": "w0",
        "gateway.attempts": 1,
    }.items() <= server.attributes.items()
    assert "error.type" not in server.attributes
    assert "gateway.overhead.parse" in server.attributes
    assert record.body_s is not None
    assert record.ttft_s is not None
    assert server.began + int((record.body_s + record.ttft_s) * 1e9) == server.events["gen_ai.first_token"]
    assert ("127.0.0.1", worker.port) == (client.attributes["server.address"], client.attributes["server.port"])
    assert not re.search("secret|Paris", repr([server, client]))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_a_client_s_trace_is_continued_and_its_state_passed_on(
    collector: Collector, tracing: Tracing, stream: bool
) -> None:
    """The server span's parent is the client's span; the worker gets the same trace and the state unchanged."""
    script = GOOD if stream else scripts.chat_json()
    async with asyncio.timeout(20), FaultServer(script) as worker, gateway(worker, tracer=tracing.tracer) as served:
        await ask(served.port, post(CHAT, chat(stream=stream), FROM_CLIENT))
        server, client = await asyncio.to_thread(collector.wait, 2)
        told = context_of(worker.requests[0].headers)

    assert (TRACE, CALLER, "vendor=opaque,other=1") == (server.trace, server.parent, server.state)
    assert {"traceparent": f"00-{TRACE}-{client.id}-01", "tracestate": "vendor=opaque,other=1"} == told


async def test_a_client_that_does_not_sample_is_not_traced_and_the_worker_is_told_so(
    collector: Collector, tracing: Tracing
) -> None:
    """Nothing is sent, and the trace's id still connects the worker's log with the client's."""
    async with asyncio.timeout(20), FaultServer(GOOD) as worker, gateway(worker, tracer=tracing.tracer) as served:
        await ask(served.port, post(CHAT, chat(), UNSAMPLED))
        told = context_of(worker.requests[0].headers)["traceparent"]
        await ask(served.port, post(CHAT, chat(), FROM_CLIENT))
        spans = await asyncio.to_thread(collector.wait, 2)
        await served.idle()

    assert re.fullmatch(rf"00-{TRACE}-[0-9a-f]{{16}}-00", told)
    assert CALLER not in told
    assert 2 == len(spans)


async def test_a_client_that_is_not_trusted_is_linked_and_not_followed(collector: Collector) -> None:
    """Its sampling does not count, nor does its state go further."""
    tracing = open_tracing(TracingSetup(collector.url, send_every_s=0.02, trust_incoming=False))
    try:
        async with asyncio.timeout(20), FaultServer(GOOD) as worker, gateway(worker, tracer=tracing.tracer) as served:
            await ask(served.port, post(CHAT, chat(), {**FROM_CLIENT, **UNSAMPLED}))
            server, _ = await asyncio.to_thread(collector.wait, 2)
            told = context_of(worker.requests[0].headers)
    finally:
        tracing.close()

    assert server.trace != TRACE
    assert ("", [(TRACE, CALLER)]) == (server.parent, server.links)
    assert ["traceparent"] == list(told)
    assert TRACE not in told["traceparent"]


async def test_a_ratio_of_zero_traces_only_those_who_ask_for_it(collector: Collector) -> None:
    """The decision of a root is the gateway's, that of a child its parent's."""
    tracing = open_tracing(TracingSetup(collector.url, send_every_s=0.02, sample_ratio=0.0))
    try:
        async with asyncio.timeout(20), FaultServer(GOOD) as worker, gateway(worker, tracer=tracing.tracer) as served:
            await ask(served.port, post(CHAT, chat()))
            await ask(served.port, post(CHAT, chat(), FROM_CLIENT))
            spans = await asyncio.to_thread(collector.wait, 2)
    finally:
        tracing.close()

    assert {TRACE} == {span.trace for span in spans}
    assert 2 == len(spans)


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "nonsense"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"tracestate": "vendor=opaque"},
        {"traceparent": "\xff" * 50},
    ],
)
async def test_a_context_that_is_none_begins_a_trace(
    collector: Collector, tracing: Tracing, headers: dict[str, str]
) -> None:
    """Whatever a client writes there costs no request, and the worker gets a context that is one."""
    async with asyncio.timeout(20), FaultServer(GOOD) as worker, gateway(worker, tracer=tracing.tracer) as served:
        answer = await ask(served.port, post(CHAT, chat(), headers))
        server, client = await asyncio.to_thread(collector.wait, 2)
        received = worker.requests[0].headers

    assert 200 == answer.status
    assert "" == server.parent
    assert (server.trace, client.id) == parent_of(received)
    assert ["traceparent"] == list(context_of(received))


async def test_failures_are_errors_and_a_client_s_doing_is_not(collector: Collector, tracing: Tracing) -> None:
    """By the outcome that is counted and logged: ours and the workers' faults only."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.ERRORS["bad-gateway-html"]) as worker,
        gateway(worker, tracer=tracing.tracer) as served,
    ):
        await ask(served.port, post(CHAT, chat()))
        await ask(served.port, post(CHAT, {**chat(), "model": "no such model"}))
        spans = await asyncio.to_thread(
            collector.until, lambda spans: 2 == sum(span.kind == "server" for span in spans)
        )

    failed, refused = (span for span in spans if span.kind == "server")
    about = ("gateway.outcome", "error.type", "http.response.status_code")
    assert ["upstream_error", "upstream_error", 502] == list(subset(failed, *about).values())
    assert ["client_error", "client_error", 404] == list(subset(refused, *about).values())
    assert (True, False) == (failed.error, refused.error)
    assert "gen_ai.request.model" not in refused.attributes
    assert not [span for span in spans if span.parent == refused.id]


async def test_a_client_that_leaves_ends_both_spans_without_an_error(collector: Collector, tracing: Tracing) -> None:
    """Its departure is told, with what is known of the answer; an estimate of its tokens is not told as usage."""
    stalls = scripts.stream(frames.ChatStream().events(["Par", "is"])[:3], end=Stall())
    async with asyncio.timeout(20), FaultServer(stalls) as worker, gateway(worker, tracer=tracing.tracer) as served:
        async with connect(served.port) as client:
            client.send(post(CHAT, chat()))
            await client.chunk(await client.head())
            client.reset()
            await (await worker.request(0)).closed.wait()
        record = await served.records.record()
        server, attempt = await asyncio.to_thread(collector.wait, 2)

    assert Outcome.CLIENT_CLOSED is record.outcome
    assert (False, False) == (server.error, attempt.error)
    assert ["client_closed", "client_closed"] == [each.attributes["error.type"] for each in (server, attempt)]
    assert "streaming" == server.attributes["gateway.disconnect"]
    assert "gen_ai.usage.output_tokens" not in server.attributes
