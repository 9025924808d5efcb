"""Headers: what is forwarded is on a list, and a request id is either harmless or replaced."""

from __future__ import annotations

import json
import re

import pytest

from gateway.clock import SystemClock
from gateway.log import EventLog
from gateway.types import Outcome
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.corpus.expectations import EVENTS
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, ask, chat, connect, post

pytestmark = pytest.mark.anyio

FORWARDED = {
    "accept",
    "accept-encoding",
    "anthropic-beta",
    "anthropic-version",
    "baggage",
    "content-length",
    "content-type",
    "host",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-request-id",
    "x-session-id",
}
SENT = {
    "accept": "application/json",
    "anthropic-version": "2023-06-01",
    "api-key": "secret",
    "authorization": "Bearer secret",
    "cookie": "session=secret",
    "forwarded": "for=10.0.0.1",
    "openai-organization": "org-secret",
    "openai-project": "proj-secret",
    "origin": "https://app.test",
    "proxy-connection": "keep-alive",
    "referer": "https://app.test/secret",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "user-agent": "OpenAI/Python 3.57.0",
    "x-api-key": "secret",
    "x-data-parallel-rank": "3",
    "x-forwarded-for": "10.0.0.1",
    "x-forwarded-host": "api.example.test",
    "x-forwarded-proto": "https",
    "x-real-ip": "10.0.0.1",
    "x-stainless-lang": "python",
    "x-vllm-priority": "9",
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c27_only_listed_headers_reach_the_worker(relay: Relay, stream: bool) -> None:
    """Host is the worker's own; credentials, cookies, organisation and the client's address stay here."""
    script = scripts.stream(EVENTS) if stream else scripts.chat_json()
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=stream), SENT))

        assert 200 == answer.status
        received = worker.requests[0]
        assert [f"127.0.0.1:{worker.port}"] == received.http.header_values("host")
        assert set() == {name.lower() for name, _ in received.headers} - FORWARDED
        assert b"secret" not in received.raw
        assert SENT["traceparent"] == received.header("traceparent")
        assert SENT["user-agent"] == received.header("user-agent")


SAFE = re.compile(r"[A-Za-z0-9._-]{1,128}")
UNSAFE_IDS = {
    "long": b"a" * 129,
    "huge": b"a" * 40_000,
    "empty": b"",
    "space": b"a b",
    "nel": "a\u0085b".encode(),
    "escape": b"a\x1b[31mb",
    "tab": b"a\tb",
    "json": b'a","level":"error","x":"',
    "backslash": b"a\\nb",
    "percent": b"a%0d%0aset-cookie: x=1",
    "high": b"a\xff\xfe",
    "slash": b"../../etc/passwd",
}

NOT_HTTP = (UNSAFE_IDS["escape"],)
"""No header may hold these bytes, whatever its name."""


@pytest.mark.parametrize("given", UNSAFE_IDS.values(), ids=UNSAFE_IDS)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/nowhere"])
async def test_c33_an_unsafe_request_id_is_replaced(relay: Relay, path: str, given: bytes) -> None:
    """Exactly one harmless id goes out, the same under both names, and nothing of the client's reaches a log line."""
    data = post(CHAT, chat(stream=False), {"x-request-id": "ID"}).replace(b"ID", given)
    if path != CHAT:
        data = b"GET %b HTTP/1.1\r\nhost: a\r\nx-request-id: %b\r\n\r\n" % (path.encode(), given)
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, data)

        (given_back,) = answer.all("x-request-id")
        assert SAFE.fullmatch(given_back)
        assert given_back.encode() != given
        assert [given_back] == answer.all("request-id")
        assert [] == answer.all("set-cookie")
        assert 400 == answer.status or given not in NOT_HTTP
        if path != CHAT or given in NOT_HTTP:
            assert [] == worker.requests
            return
        assert SAFE.fullmatch(worker.requests[0].header("x-request-id") or "")
        record = await gate.ended(Outcome.OK)
        if record is not None:
            lines: list[bytes] = []
            EventLog(lines.append, SystemClock()).request(record)
            (line,) = lines
            assert b"\n" not in line.rstrip(b"\n")
            assert given_back == json.loads(line)["request_id"]
            assert "info" == json.loads(line)["level"]


async def test_c33_a_huge_head_is_refused(relay: Relay) -> None:
    """100 kB of an id are not kept in memory to be thrown away later."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(post(CHAT, chat(stream=False), {"x-request-id": "a" * 100_000}))
        answer = await client.answer()

        assert 431 == answer.status
        assert [] == worker.requests


async def test_c33_a_header_split_in_two_is_no_header(relay: Relay) -> None:
    """A bare line feed in an id cannot start another header."""
    data = post(CHAT, chat(stream=False), {"x-request-id": "a\nset-cookie: x=1"})
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, data)

        assert 400 == answer.status
        assert [] == answer.all("set-cookie")
        assert [] == worker.requests


async def test_c33_two_ids_are_none(relay: Relay) -> None:
    """Whichever of them were meant, a new one is made."""
    data = post(CHAT, chat(stream=False), {"x-request-id": "first", "X-Request-Id": "second"})
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, data)

        (given_back,) = answer.all("x-request-id")
        assert given_back not in ("first", "second")


async def test_c33_a_safe_request_id_is_kept_here_and_replaced_upstream(relay: Relay) -> None:
    """The client's id names the exchange; the worker gets one of its own per attempt, since it must be unique there."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=False), {"x-request-id": "My_Trace.id-1"}))

        assert ["My_Trace.id-1"] == answer.all("x-request-id")
        assert "My_Trace.id-1" != worker.requests[0].header("x-request-id")
