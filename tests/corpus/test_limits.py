"""Limits that come back whatever ends a request, and objects that only one worker could hold."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from gateway.admission import QueueLimits
from gateway.api.authentication import KeyAuthenticator
from gateway.keys import ApiKey, digest_of
from gateway.proxy.policy import RelayPolicy
from gateway.types import Outcome
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Stall
from tests.corpus.envelopes import error_of
from tests.corpus.expectations import EVENTS
from tests.corpus.keyed import SECRET, bearer
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, ask, chat, connect, post, request
from tests.proxy.served import until

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
ABORTED = scripts.stream(EVENTS[:2], end=Stall())


def head(*lines: str) -> bytes:
    """The head of a chat request, with whatever framing `lines` announce."""
    return "\r\n".join([f"POST {CHAT} HTTP/1.1", "host: gateway", *lines, "", ""]).encode()


def limited(max_in_flight: int) -> KeyAuthenticator:
    """Knows `SECRET`, which may have so many requests at a time."""
    known = KeyAuthenticator(anonymous_allowed=False)
    digest = digest_of(SECRET.encode()).hex()
    known.replace([ApiKey("key-00000001", "tenant-a", digest, 1, max_in_flight=max_in_flight)])
    return known


@pytest.mark.parametrize("limit", ["permits", "key"])
async def test_c89_what_aborted_streams_held_is_free_at_once(relay: Relay, limit: str) -> None:
    """
    Ten streams are cut off by their clients under a limit of two, two at a time, and an eleventh is served: neither a
    worker's permits nor a key's slots are lost, and nobody had to wait for a time limit.
    """
    options = {"permits": {"sim": 2}} if limit == "permits" else {"authenticator": limited(2)}
    async with (
        FaultServer(*[ABORTED] * 10, scripts.chat_stream()) as worker,
        relay(worker, queues={"sim": QueueLimits(timeout_s=600)}, **options) as gate,
    ):
        for turn in range(5):
            async with connect(gate.port) as one, connect(gate.port) as two:
                for client in (one, two):
                    client.send(post(CHAT, chat(), bearer()))
                    answer = await client.head()
                    assert 200 == answer.status, turn
                    await client.chunk(answer)
                for client in (one, two):
                    client.reset()
            if limit == "key":  # a slot is asked for and not waited for
                await gate.idle()
        assert 200 == (await ask(gate.port, post(CHAT, chat(), bearer()))).status

        assert 11 == len(worker.requests)
        for index in range(10):
            await gate.ended(Outcome.CLIENT_CLOSED, index=index)
        await gate.idle()
        assert [] == gate.blamed()


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_c74_more_requests_than_may_wait_are_429(relay: Relay, path: str) -> None:
    """What is held in memory for busy workers is bounded: one more is told to come back, and when, at once."""
    async with (
        FaultServer(ABORTED) as worker,
        relay(worker, permits={"sim": 1}, queues={"sim": QueueLimits(max_queued=3)}) as gate,
        connect(gate.port) as busy,
        AsyncExitStack() as stack,
    ):
        busy.send(post(CHAT, chat()))
        await worker.request(0)
        for _ in range(3):
            client = await stack.enter_async_context(connect(gate.port))
            client.send(post(CHAT, chat()))
        if gate.served is not None:
            admission = gate.served.admission
            await until(lambda: admission.waiting == 3)
        answer = await ask(gate.port, post(path, chat() | {"max_tokens": 1}))

        error_of(answer, 429, path=path)
        assert 1 <= int(answer.header("retry-after")) <= 60
        assert 1 == len(worker.requests)
        await gate.ended(Outcome.REJECTED)
    assert [] == gate.blamed()


@pytest.mark.parametrize("framing", ["content-length", "chunked", "expect"])
async def test_c74_more_bytes_than_may_be_held_are_429(relay: Relay, framing: str) -> None:
    """
    Two bodies of a megabyte fill the budget, one of them whole at its worker and one that still arrives. A third is
    refused before it is read, in a form its client gets to see; small ones pass; all is given back at the end.
    """

    def small(policy: RelayPolicy) -> RelayPolicy:
        return replace(policy, max_buffered_bytes=2_500_000)

    large = json.dumps(chat() | {"user": "x" * 1_000_000}).encode()
    headers = {"content-length": f"content-length: {len(large)}", "chunked": "transfer-encoding: chunked"}
    async with (
        FaultServer(ABORTED, scripts.chat_json()) as worker,
        relay(worker, relay_policy=small) as gate,
        connect(gate.port) as held,
        connect(gate.port) as arriving,
        connect(gate.port) as third,
    ):
        held.send(post(CHAT, large))
        await worker.request(0)
        arriving.send(head("content-type: application/json", headers["content-length"]) + large[:500_000])
        if gate.served is not None:
            bodies = gate.served.relay.bodies
            await until(lambda: bodies.held_bytes == 2 * len(large))
        expecting = ["expect: 100-continue"] if framing == "expect" else []
        third.send(head("content-type: application/json", headers.get(framing, headers["content-length"]), *expecting))
        if framing == "chunked":
            third.send(b"%x\r\n%b\r\n" % (len(large), large))
        answer = await third.answer()
        error = error_of(answer, 429)
        assert ("too_many_large_requests", "2") == (error["code"], answer.header("retry-after"))
        assert 200 == (await ask(gate.port, post(CHAT, chat(stream=False)))).status
        assert 2 == len(worker.requests)
        arriving.reset()
        held.reset()
        await gate.idle()
        assert [] == gate.blamed()


@pytest.mark.parametrize("target", ["/v1/responses/resp_1", "/v1/responses/resp_1/cancel"])
async def test_c88_stored_objects_are_asked_of_no_worker(relay: Relay, target: str) -> None:
    """Which of the workers holds it nobody knows: a plain 404 with an error object, the same every time."""
    method = "POST" if target.endswith("cancel") else "GET"
    async with (
        FaultServer(scripts.answer(200, {"id": "resp_1"})) as one,
        FaultServer(scripts.error(404, "no such response", "NotFoundError")) as other,
        relay(one, other) as gate,
    ):
        for _ in range(4):
            answer = await ask(gate.port, request(method, target))
            error_of(answer, 404)
        assert 0 == len(one.requests) + len(other.requests)
        await gate.idle()


@pytest.mark.parametrize(
    ("field", "value", "status", "code"),
    [
        ("previous_response_id", "resp_1", 404, "previous_response_not_found"),
        ("background", True, 400, "unsupported_parameter"),
    ],
)
async def test_c88_what_needs_a_stored_object_is_refused(
    relay: Relay, field: str, value: object, status: int, code: str
) -> None:
    """Every time, not only when the request meets the wrong worker; the error names the field; null is none."""
    body = {"model": "sim", "input": "x"}
    async with (
        FaultServer(scripts.answer(200, {"id": "resp_1"})) as one,
        FaultServer(scripts.answer(200, {"id": "resp_2"})) as other,
        relay(one, other) as gate,
    ):
        for _ in range(4):
            error = error_of(await ask(gate.port, post(RESPONSES, body | {field: value})), status)
            assert (code, field) == (error["code"], error["param"])
        assert 0 == len(one.requests) + len(other.requests)
        absent: object = None
        assert 200 == (await ask(gate.port, post(RESPONSES, body | {field: absent}))).status
        await gate.idle()
