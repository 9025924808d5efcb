"""The console's routes: what they serve, to whom, and what the chat box may not be used for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import anyio
import anyio.abc
import httpx
import pytest
from fastapi import FastAPI

from gateway.clock import SystemClock
from gateway.control.admin import TcpGuard
from gateway.control.status_report import StatusReport
from gateway.control.web import CHAT_PATH, History, console_routes
from gateway.log import EventLog
from gateway.workers.nvml import GpuSensors

pytestmark = pytest.mark.anyio
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n"
CHAT_SCOPE = {
    **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"},
    **{"path": CHAT_PATH, "raw_path": CHAT_PATH.encode(), "query_string": b"", "root_path": ""},
    **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8001)},
    "headers": [(b"host", b"127.0.0.1:8001"), (b"x-console", b"1")],
}
OURS = {"x-console": "1", "content-type": "application/json"}


def nothing_yet() -> History:
    return History(lambda metrics: {}, lambda: ["m"], SystemClock(), EventLog(list[bytes]().append, SystemClock()))


@dataclass
class Console:
    """The console behind the guard of the TCP port, and what reached the public endpoint behind it."""

    http: httpx.AsyncClient
    history: History
    asked: list[bytes] = field(default_factory=list)
    reached: anyio.Event = field(default_factory=anyio.Event)
    closed: anyio.Event = field(default_factory=anyio.Event)


def app_of(made: Console) -> Callable[..., Coroutine[object, object, None]]:
    """The application itself, for messages that no client would send."""
    transport = made.http._transport
    assert isinstance(transport, httpx.ASGITransport)
    return cast(Callable[..., Coroutine[object, object, None]], transport.app)


@asynccontextmanager
async def console(
    answer: bytes = b"",
    *,
    hold: bool = False,
    keys: bool = False,
    gpus: Sequence[GpuSensors] = (),
    chat_open: bool = True,
) -> AsyncIterator[Console]:
    """A public endpoint that gives `answer` and closes, or `hold`s the connection until its client has left."""
    public = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = public.extra(anyio.abc.SocketAttribute.local_port)
    report = StatusReport(1, "0", 1.0, False, f"http://127.0.0.1:{port}", "http://127.0.0.1:2", (), (), ())
    history = nothing_yet()
    app = FastAPI()
    app.include_router(console_routes(lambda: report, history, lambda: gpus, lambda: keys))
    guarded = TcpGuard(app, bound_host="127.0.0.1", token="secret", chat_open=lambda: chat_open)
    transport = httpx.ASGITransport(guarded)
    async with (
        public,
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as http,
        anyio.create_task_group() as group,
    ):
        made = Console(http, history)

        async def serve(stream: anyio.abc.SocketStream) -> None:
            async with stream:
                made.asked.append(await stream.receive())
                made.reached.set()
                if answer:
                    await stream.send(answer)
                if hold:
                    with anyio.move_on_after(20):
                        try:
                            await stream.receive()
                        except (anyio.EndOfStream, anyio.BrokenResourceError):
                            made.closed.set()

        group.start_soon(public.serve, serve)
        yield made
        group.cancel_scope.cancel()


@pytest.mark.parametrize("path", ["/console", "/console/console.css", "/console/console.js"])
async def test_the_page_needs_no_token_and_nothing_from_elsewhere(path: str) -> None:
    """No address of another host in any asset, and a policy that would forbid it."""
    async with console() as made:
        answer = await made.http.get(path)

    assert 200 == answer.status_code
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    foreign = [word for word in answer.text.split('"') if word.startswith(("http://", "https://", "//"))]
    assert [] == [word for word in foreign if "www.w3.org" not in word]


async def test_only_the_assets_are_files() -> None:
    """No path leads to another file."""
    async with console() as made:
        for path in ("/console/routes.py", "/console/..%2froutes.py", "/console/%2e%2e/routes.py"):
            answer = await made.http.get(path)
            assert 404 == answer.status_code, path


async def test_a_refresh_gets_only_what_is_new() -> None:
    """Samples after `since`, with the report as of now."""
    async with console(keys=True) as made:
        made.history.look()
        first = (await made.http.get("/console/data")).json()
        again = (await made.http.get("/console/data", params={"since": first["samples"][-1]["at_unix_s"]})).json()

    assert 1 == len(first["samples"])
    assert [] == again["samples"]
    assert first["keys_required"] is True
    assert first["report"]["version"] == "0"


async def test_gpus_are_in_the_data_as_they_were_read() -> None:
    """What a GPU does not tell is null, not zero."""
    async with console(gpus=[GpuSensors(0, "GPU-0", "NVIDIA H200", 80, 20, utilization=0.5)]) as made:
        (gpu,) = (await made.http.get("/console/data")).json()["gpus"]

    assert (80, 20, 0.5, None) == (gpu["total_bytes"], gpu["used_bytes"], gpu["utilization"], gpu["power_w"])


async def test_a_chat_request_reaches_the_public_endpoint_with_the_persons_own_key() -> None:
    """The bytes as they were, the answer as it came, streamed; and nothing of the browser's own headers."""
    events = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\ndata: [DONE]\n\n"
    body = b'{"model": "m",  "stream": true}'
    async with console(events) as made:
        answer = await made.http.post(CHAT_PATH, content=body, headers={**OURS, "x-api-key": "sk-1", "cookie": "a=b"})

    (asked,) = made.asked
    assert (200, "data: {}\n\ndata: [DONE]\n\n") == (answer.status_code, answer.text)
    assert asked.startswith(b"POST /v1/chat/completions ")
    assert asked.endswith(body)
    assert b"Bearer sk-1" in asked
    assert b"cookie" not in asked.lower()


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/json"},
        {**OURS, "origin": "http://evil.example"},
        {**OURS, "origin": "http://127.0.0.1:9999"},
        {**OURS, "origin": "null"},
    ],
)
async def test_another_sites_page_cannot_use_the_chat_box(headers: dict[str, str]) -> None:
    """A form or a script from elsewhere is refused before anything is sent anywhere."""
    async with console() as made:
        answer = await made.http.post(CHAT_PATH, content=b"{}", headers=headers)

    assert 403 == answer.status_code
    assert [] == made.asked


async def test_the_exemption_is_for_the_chat_box_alone() -> None:
    """Every other POST still needs the token."""
    async with console() as made:
        for path in ("/console/chat/", "/console/data", "/workers/m-0/restart", "/reload"):
            assert 401 == (await made.http.post(path, headers=OURS)).status_code, path


@pytest.mark.parametrize("head", [EVENTS, b""], ids=["in the middle of it", "before it began"])
async def test_a_person_who_leaves_ends_the_request(head: bytes) -> None:
    """The connection to the public endpoint is closed, which ends the generation, or the wait for a worker."""
    began, left = anyio.Event(), anyio.Event()

    async with console(head, hold=True) as made, anyio.create_task_group() as group:
        asked = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> dict[str, object]:
            if asked:
                return asked.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.body":
                began.set()

        group.start_soon(app_of(made), CHAT_SCOPE, receive, send)
        with anyio.fail_after(20):
            await (began if head else made.reached).wait()
            left.set()
            await made.closed.wait()


async def test_a_body_without_end_is_refused_and_not_gathered() -> None:
    """Whoever reaches the port may send it; what lies in memory is a mebibyte at most."""
    piece, taken, statuses = b"x" * 65536, list[int](), list[object]()

    async def receive() -> dict[str, object]:
        taken.append(len(piece))
        assert len(taken) < 1000
        return {"type": "http.request", "body": piece, "more_body": True}

    async def send(message: dict[str, object]) -> None:
        statuses.append(message.get("status"))

    async with console() as made:
        with anyio.fail_after(20):
            await app_of(made)(CHAT_SCOPE, receive, send)

    assert 413 == statuses[0]
    assert sum(taken) <= 2 * 1024 * 1024
    assert [] == made.asked


async def test_where_callers_may_not_do_without_a_key_the_chat_box_is_no_way_around() -> None:
    """An admin port that others reach must not open an endpoint on loopback to them; the owner's token does."""
    async with console(EVENTS, chat_open=False) as made:
        refused = await made.http.post(CHAT_PATH, content=b"{}", headers=OURS)
        asked = list(made.asked)
        taken = await made.http.post(CHAT_PATH, content=b"{}", headers={**OURS, "authorization": "Bearer secret"})

    assert 403 == refused.status_code
    assert "gateway keys create" in refused.json()["error"]["message"]
    assert [] == asked
    assert 200 == taken.status_code


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8001", "https://127.0.0.1:8001"])
async def test_our_own_page_may_ask_also_behind_a_proxy_with_tls(origin: str) -> None:
    """The browser names the scheme that it knows; and no compression is asked for, since nothing would undo it."""
    async with console(EVENTS) as made:
        answer = await made.http.post(CHAT_PATH, content=b"{}", headers={**OURS, "origin": origin})

    assert 200 == answer.status_code
    assert b"accept-encoding: identity" in made.asked[0].lower()


async def test_a_public_endpoint_that_is_away_is_said_so() -> None:
    """502 in words, not a trace."""
    report = StatusReport(1, "0", 1.0, False, "http://127.0.0.1:9", "http://127.0.0.1:2", (), (), ())
    app = FastAPI()
    app.include_router(console_routes(lambda: report, nothing_yet(), list, lambda: False))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8001") as http:
        answer = await http.post(CHAT_PATH, content=b"{}", headers=OURS)

    assert 502 == answer.status_code
    assert "does not answer" in answer.json()["error"]["message"]
