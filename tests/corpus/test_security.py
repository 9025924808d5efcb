"""What must never happen: fetching what a client names, repeating a secret, growing with what clients make up."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.clock import SystemClock
from gateway.log import EventLog
from gateway.metrics import Layout, SlotCounters, Totals, render
from gateway.record import ExchangeRecord
from gateway.types import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from tests.corpus.keyed import authenticator, bearer
from tests.corpus.relayed import Relay, Relayed
from tests.proxy.raw_client import CHAT, ask, chat, connect, post, request
from tests.proxy.served import worker_view

pytestmark = pytest.mark.anyio


def bodies_with(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests that mention a URL wherever some API has one."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "file", "file": {"file_data": url, "file_url": url}},
        {"type": "image", "source": {"type": "url", "url": url}},
    ]
    message = [{"role": "user", "content": parts}]
    return [
        (CHAT, {"model": "sim", "messages": message, "webhook": url, "callback_url": url}),
        ("/v1/responses", {"model": "sim", "input": message, "tools": [{"type": "mcp", "server_url": url}]}),
        ("/v1/messages", {"model": "sim", "max_tokens": 5, "messages": message}),
        ("/v1/embeddings", {"model": "sim", "input": url}),
    ]


@pytest.mark.parametrize("scheme", ["http", "https", "ws", "ftp"])
async def test_c76_urls_in_bodies_are_not_fetched(relay: Relay, scheme: str) -> None:
    """They are the worker's business, and reach it unread."""
    async with (
        FaultServer(scripts.answer(200, {})) as canary,
        FaultServer(scripts.chat_json()) as worker,
        relay(worker) as gate,
    ):
        sent = bodies_with(f"{scheme}://127.0.0.1:{canary.port}/x")
        for path, body in sent:
            assert 200 == (await ask(gate.port, post(path, body))).status

        assert [body for _, body in sent] == [received.json() for received in worker.requests]
        assert [] == canary.connections


async def test_c76_the_gateway_is_no_forward_proxy(relay: Relay) -> None:
    """Absolute targets, CONNECT and headers that name another host lead to the gateway itself or nowhere."""
    async with (
        FaultServer(scripts.answer(200, {})) as canary,
        FaultServer(scripts.chat_json()) as worker,
        relay(worker) as gate,
    ):
        place = f"127.0.0.1:{canary.port}"
        elsewhere = {
            "x-forwarded-host": place,
            "x-forwarded-for": place,
            "forwarded": f"host={place}",
            "x-original-url": f"http://{place}/",
            "x-rewrite-url": "/metrics",
            "content-type": "application/json",
        }
        body = json.dumps(chat(stream=False)).encode()
        answers = [
            await ask(gate.port, request("GET", f"http://{place}/")),
            await ask(gate.port, request("GET", f"http://{place}/metrics")),
            await ask(gate.port, request("POST", f"http://{place}{CHAT}", elsewhere, body)),
            await ask(gate.port, request("POST", CHAT, elsewhere, body)),
        ]
        async with connect(gate.port) as client:
            client.send(f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n\r\n".encode())
            assert 400 <= (await client.head()).status < 500

        assert [404, 404, 200, 200] == [answer.status for answer in answers]
        assert [] == canary.connections
        assert [CHAT, CHAT] == [received.target for received in worker.requests]
        assert [f"127.0.0.1:{worker.port}"] * 2 == [received.header("host") for received in worker.requests]
        assert place.encode() not in b"".join(received.raw for received in worker.requests)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_c76_a_workers_redirect_is_not_followed(relay: Relay, status: int) -> None:
    """Neither by the gateway nor, through it, by the client: the place it names may be anybody's."""
    async with FaultServer(scripts.answer(200, {})) as canary:
        place = (("location", f"http://127.0.0.1:{canary.port}/x"),)
        async with FaultServer(scripts.answer(status, b"", place)) as worker, relay(worker) as gate:
            answer = await ask(gate.port, post(CHAT, chat()))

            assert 502 == answer.status
            assert answer.header("location") is None
            assert [] == canary.connections


CANARY = "sk-CANARY"
LEAKY = [
    {"authorization": f"Bearer {CANARY}"},
    {"authorization": CANARY},
    {"authorization": f"Bearer\t{CANARY}"},
    {"authorization": f"Basic {CANARY}"},
    {"authorization": f"Bearer {CANARY} {CANARY}"},
    {"x-api-key": CANARY},
    {"api-key": CANARY},
    {"cookie": f"session={CANARY}"},
    {"proxy-authorization": f"Bearer {CANARY}"},
    {"x-goog-api-key": CANARY},
    {"x-request-id": f"{CANARY} x"},
]
TARGETS = [
    CHAT,
    f"{CHAT}?key={CANARY}",
    f"{CHAT}?api_key={CANARY}&x=1",
    f"http://user:{CANARY}@gateway.test{CHAT}",
    f"/v1/nowhere?key={CANARY}",
]
BODIES = [
    json.dumps(chat(stream=False, user=CANARY)).encode(),
    b'{"model":"sim","x":"' + CANARY.encode(),
    json.dumps({"model": "nope", "user": CANARY}).encode(),
]


def lines_of(records: Iterable[ExchangeRecord]) -> bytes:
    """The canonical log lines of exchanges, in both styles."""
    lines: list[bytes] = []
    for record in records:
        EventLog(lines.append, SystemClock()).request(record)
        EventLog(lines.append, SystemClock(), "text").request(record)
    return b"".join(lines)


def metrics_of(records: Iterable[ExchangeRecord]) -> bytes:
    """The exposition after these exchanges."""
    totals = Totals()
    layout = Layout(("sim",), (("sim", "w0"),))
    board = totals.create(layout)
    counters = SlotCounters(layout, board.cells)
    for record in records:
        counters.started(record.model, record.tenant)
        counters.finished(record)
    text = render(totals.merged())
    totals.retire(board)
    return text


def kept_by(gate: Relayed) -> bytes:
    """What the gateway keeps of everything that was asked so far."""
    records = [] if gate.served is None else gate.served.records.finished_records
    return lines_of(records) + metrics_of(records)


@pytest.mark.parametrize("keys", [True, False], ids=["keys", "anonymous"])
async def test_c77_secrets_stay_where_they_were_sent(
    relay: Relay, keys: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """However a client mangles its key, no answer, log line, metric or worker's request repeats it."""
    caplog.set_level(logging.DEBUG)
    options = {"authenticator": authenticator()} if keys else {}
    async with FaultServer(scripts.chat_json()) as worker, relay(worker, **options) as gate:
        answers = []
        async with connect(gate.port) as client:
            for headers in LEAKY:
                for target in TARGETS:
                    for body in BODIES:
                        client.send(request("POST", target, {"content-type": "application/json", **headers}, body))
                        answers.append(await client.answer())
        await gate.idle()

        assert any(answer.status == (401 if keys else 200) for answer in answers)
        for answer in answers:
            assert CANARY not in repr(answer.headers)
            assert CANARY.encode() not in answer.body
        # The worker gets the body, which is the client's; nothing else.
        assert all(CANARY.encode() not in received.raw.partition(b"\r\n\r\n")[0] for received in worker.requests)
        assert CANARY.encode() not in kept_by(gate)
        assert CANARY not in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        f"GET /{CANARY} {CANARY}\r\n\r\n",
        f"{CANARY} / HTTP/1.1\r\nhost: x\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization {CANARY}\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {CANARY}\x00\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {CANARY}\r\ncontent-length: {CANARY}\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {CANARY * 30_000}\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {CANARY}\r\ntransfer-encoding: chunked\r\n\r\n{CANARY}\r\n",
    ],
    ids=["request-line", "method", "no-colon", "nul", "length", "huge", "chunk-size"],
)
async def test_c77_what_is_no_http_is_not_repeated(relay: Relay, data: str, caplog: pytest.LogCaptureFixture) -> None:
    """The listener's own refusals say nothing of what they refuse."""
    caplog.set_level(logging.DEBUG)
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(data.encode())
        received = await client.reader.read(65_536)

        assert re.match(rb"HTTP/1.1 4\d\d ", received)
        assert CANARY.encode() not in received
        assert CANARY.encode() not in kept_by(gate)
        assert CANARY not in caplog.text
        assert [] == worker.requests


async def test_c77_a_defect_is_logged_without_secrets(relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    """The stack trace of an unforeseen failure goes to the log and not to the client; secrets go to neither."""
    caplog.set_level(logging.DEBUG)
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        if gate.served is not None:

            def broken(*_: object) -> None:
                raise RuntimeError("defect")

            gate.served.relay.dispatcher.lease = broken  # type: ignore[assignment, method-assign]
        data = post(f"{CHAT}?key={CANARY}", BODIES[0], {"authorization": f"Bearer {CANARY}"})
        answer = await ask(gate.port, data)

        assert 500 == answer.status
        assert "internal_error" == answer.json()["error"]["code"]
        assert b"defect" not in answer.body
        assert b"Traceback" not in answer.body
        await gate.ended(Outcome.INTERNAL)
        assert "RuntimeError: defect" in caplog.text
        assert CANARY not in caplog.text
        assert CANARY.encode() not in kept_by(gate)


@pytest.mark.parametrize("status", [400, 401, 403, 500])
async def test_c77_the_workers_key_stays_inside(relay: Relay, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """The gateway's own key for a worker is sent to it and nowhere else, even when the worker refuses it by name."""
    caplog.set_level(logging.DEBUG)
    echo = {401, 403}
    message = f"Incorrect API key provided: {CANARY}" if status in echo else "no"
    async with FaultServer(scripts.error(status, message, "x"), scripts.chat_stream()) as worker:
        view = worker_view(worker, api_key=CANARY)
        async with relay(view) as gate:
            refused = await ask(gate.port, post(CHAT, chat(), bearer("sk-client")))
            served = await ask(gate.port, post(CHAT, chat(), bearer("sk-client")))

            assert [[f"Bearer {CANARY}"]] * 2 == [
                [value for name, value in received.headers if name.lower() == "authorization"]
                for received in worker.requests
            ]
            assert (502 if status in echo else status) == refused.status
            assert served.body.endswith(frames.DONE)
            assert CANARY.encode() not in refused.body + served.body
            assert CANARY.encode() not in kept_by(gate)
            assert CANARY not in caplog.text


def test_c77_a_workers_key_is_in_no_repr() -> None:
    """A view of a worker may end up in a stack trace or a log line."""
    assert CANARY not in repr(worker_view(api_key=CANARY))


async def test_c79_made_up_names_make_no_series(relay: Relay) -> None:
    """Junk models, paths, users, keys, ids: the metrics have as many series as before, and repeat none of them."""
    count = 300
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        async with connect(gate.port) as client:
            for number in range(count):
                junk = f"junk{number}"
                target = CHAT if number % 3 else f"/v1/{junk}"
                headers = {"x-api-key": junk, "x-session-id": junk, "user-agent": junk}
                client.send(post(target, {"model": junk, "user": junk}, headers))
                assert 404 == (await client.answer()).status
        await gate.idle()
        if gate.served is None:
            pytest.fail("the double has no metrics")

        records = gate.served.records.finished_records
        assert {""} == {record.model for record in records}
        assert {Outcome.CLIENT_ERROR} == {record.outcome for record in records}
        metrics = metrics_of(records)
        assert metrics_of(records[:5]).count(b"\n") == metrics.count(b"\n")
        assert b"junk" not in metrics
        assert b"junk" not in lines_of(records)
        counted = b'gateway_requests_total{endpoint="/v1/chat/completions",model="other",outcome="client_error"} 200.0'
        assert counted in metrics
        assert [] == worker.requests


async def test_c79_concurrent_junk_leaves_nothing(relay: Relay) -> None:
    """Nothing in the process grows with what clients make up: no pool, no lease, no gauge."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        await asyncio.gather(*(ask(gate.port, post(CHAT, {"model": f"junk{n}"})) for n in range(50)))
        await gate.idle()

        if gate.served is not None:
            assert {} == gate.served.busy()
            assert [] == gate.served.pools.counts()
        assert [] == worker.requests
