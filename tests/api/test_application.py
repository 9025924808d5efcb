"""The public routes: what is served, and that everything else is refused in the error envelope."""

from __future__ import annotations

import asyncio
import re

import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from gateway.api.application import create_app
from gateway.errors import RequestError
from gateway.proxy.interfaces import Caller
from gateway.proxy.policy import RelayPolicy
from gateway.proxy.pool import ConnectionPools
from gateway.proxy.relay import Relay
from gateway.types import Endpoint, ModelView, WorkerState
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.proxy import served
from tests.proxy.raw_client import CHAT, Answer, ask, chat, connect, post, request
from tests.proxy.served import Served, worker_view

pytestmark = pytest.mark.anyio

ENVELOPE = {"message", "type", "param", "code"}
HOSTILE_IDS = ["org/name-7b", "a:b@c+d", "sp ace", "uni-코드", "dots.and-dashes_1"]


def enveloped(answer: Answer, status: int) -> None:
    assert status == answer.status
    assert answer.header("content-type") == "application/json"
    error = answer.json()["error"]
    assert set(error) == ENVELOPE
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    assert answer.header("x-request-id")
    assert answer.header("request-id") == answer.header("x-request-id")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/files", "/docs", "/openapi.json", "/redoc", "/metrics", "/v1/chat"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_not_on_the_list_is_404(running: Served, method: str, path: str) -> None:
    """There is no catch-all, and FastAPI's own pages are not there."""
    enveloped(await ask(running.port, request(method, path)), 404)


@pytest.mark.parametrize(
    "path",
    ["/sleep", "/wake_up", "/collective_rpc", "/v1/load_lora_adapter", "/server_info", "/invocations", "/pause"],
)
async def test_operator_routes_of_workers_are_unreachable(running: Served, path: str) -> None:
    """Whatever vLLM serves beside the allow-list stays inside."""
    enveloped(await ask(running.port, post(path, {})), 404)


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/tokenize"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_a_wrong_method_is_405(running: Served, method: str, path: str) -> None:
    """With the right methods in Allow."""
    answer = await ask(running.port, request(method, path))

    enveloped(answer, 405)
    assert answer.header("allow") == "OPTIONS, POST"


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_a_wrong_method_on_a_get_route_is_405(running: Served, path: str) -> None:
    """Also on the routes that FastAPI serves."""
    answer = await ask(running.port, post(path, {}))

    enveloped(answer, 405)
    assert "GET" in (answer.header("allow") or "")


async def test_messages_errors_have_anthropics_envelope(running: Served) -> None:
    """The family of the route decides the form, for errors of the framework too."""
    answer = await ask(running.port, request("GET", "/v1/messages"))

    assert answer.status == 405
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/sim"])
async def test_head_is_get_without_a_body(running: Served, path: str) -> None:
    """Monitors ask with HEAD."""
    got = await ask(running.port, request("GET", path))
    head = await ask(running.port, request("HEAD", path), head=True)

    assert (200, 200) == (got.status, head.status)
    assert head.header("content-length") == got.header("content-length")
    assert head.body == b""


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/health"])
async def test_options_without_cors_names_the_methods(running: Served, path: str) -> None:
    """No origin is configured: 204 with Allow, and no CORS header."""
    answer = await ask(running.port, request("OPTIONS", path, {"origin": "https://a.test"}))

    assert answer.status == 204
    assert answer.header("allow")
    assert answer.header("access-control-allow-origin") is None


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/v1/v1/chat/completions",
        "/chat/completions",
        "/openai/v1/chat/completions",
        "/v1/chat/completions/chat/completions",
        "/v1/chat/completions?api-version=2024-01-01",
    ],
)
async def test_spellings_of_a_route(running: Served, path: str) -> None:
    """Base URLs are typed by hand: served directly, never redirected."""
    answer = await ask(running.port, post(path, chat(stream=False)))

    assert answer.status == 200


@pytest.mark.parametrize("path", ["/health/", "/v1/models/", "/v1/nothing/", "/ready/"])
async def test_nothing_redirects(running: Served, path: str) -> None:
    """A redirect would lose the method, the body or the scheme."""
    answer = await ask(running.port, request("GET", path))

    assert answer.status in (200, 404)


async def test_models_are_listed_and_retrieved_by_any_spelling() -> None:
    """Slash raw or encoded, colon, plus, space, non-ASCII."""
    from urllib.parse import quote

    models = [ModelView(name, (), 1) for name in HOSTILE_IDS]
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        served.gateway(worker, models=models) as running,
    ):
        listed = (await ask(running.port, request("GET", "/v1/models"))).json()
        assert [entry["id"] for entry in listed["data"]] == HOSTILE_IDS
        for name in HOSTILE_IDS:
            answer = await ask(running.port, request("GET", "/v1/models/" + quote(name, safe=":@+")))
            assert (200, name) == (answer.status, answer.json()["id"])
        answer = await ask(running.port, request("GET", "/v1/models/org/name-7b"))
        assert answer.json()["id"] == "org/name-7b"


@pytest.mark.parametrize("path", ["/v1/models/none", "/v1/models/a/../sim", "/v1/models/%2e%2e/sim"])
async def test_unknown_models_are_404(running: Served, path: str) -> None:
    """And a path cannot climb."""
    answer = await ask(running.port, request("GET", path))

    enveloped(answer, 404)


async def test_ready_follows_the_fleet(running: Served) -> None:
    """A worker that was never ready serves nobody; liveness does not care."""
    assert (await ask(running.port, request("GET", "/ready"))).status == 200
    view = running.view.snapshot.workers[0]
    running.publish([worker_view(None, address=view.address, state=WorkerState.FAILED)])

    assert (await ask(running.port, request("GET", "/ready"))).status == 503
    assert (await ask(running.port, request("GET", "/health"))).status == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{not json", b"[]", b'"x"', b"null", b"{}", b'{"model":5}', b'{"model":null}', b'{"model":""}', b"\xff\xfe"],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT_COMPLETIONS, Endpoint.EMBEDDINGS, Endpoint.RESPONSES])
async def test_bad_bodies_are_refused(running: Served, endpoint: Endpoint, body: bytes) -> None:
    """400 or 404 in the envelope, and the server lives on."""
    answer = await ask(running.port, post(endpoint.value, body))

    assert answer.status in (400, 404)
    assert set(answer.json()["error"]) == ENVELOPE
    assert (await ask(running.port, request("GET", "/health"))).status == 200


async def test_an_unknown_model_is_404(running: Served) -> None:
    """With the code that clients look for; what was asked for is not echoed at length."""
    answer = await ask(running.port, post(CHAT, {"model": "x" * 1000, "messages": []}))

    enveloped(answer, 404)
    assert answer.json()["error"]["code"] == "model_not_found"
    assert len(answer.body) < 600


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-1.2_3", True), ("x" * 129, False), ('","level":"x', False), ("a b", False), ("%0d%0aset-cookie:a", False)],
)
async def test_request_ids_are_kept_if_safe(running: Served, sent: str, kept: bool) -> None:
    """One id on every answer; a client's own only if it cannot hurt."""
    answer = await ask(running.port, post(CHAT, chat(stream=False), {"x-request-id": sent}))

    assert (answer.header("x-request-id") == sent) is kept
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", answer.header("x-request-id") or "")
    assert answer.header("request-id") == answer.header("x-request-id")


async def test_what_a_worker_is_told_of_the_client() -> None:
    """Host is the worker's own; credentials, cookies and hop-by-hop headers stay here."""
    headers = {
        "authorization": "Bearer sk-CANARY",
        "x-api-key": "CANARY",
        "cookie": "CANARY",
        "openai-organization": "CANARY",
        "x-forwarded-for": "CANARY",
        "accept-encoding": "gzip, br",
        "connection": "keep-alive, x-hop",
        "x-hop": "CANARY",
        "x-request-id": "mine",
        "traceparent": "00-1-2-01",
    }
    async with asyncio.timeout(10), FaultServer(scripts.chat_json()) as worker, served.gateway(worker) as running:
        await ask(running.port, post(CHAT, chat(stream=False), headers))
        received = worker.requests[0]

        assert b"CANARY" not in received.raw
        assert received.header("host") == f"127.0.0.1:{worker.port}"
        assert received.header("accept-encoding") in (None, "identity")
        assert received.header("traceparent") == "00-1-2-01"
        assert received.header("x-request-id") not in (None, "mine")


async def test_what_a_client_is_told_of_the_worker() -> None:
    """Hop-by-hop and private headers stay inside; exactly one framing header remains."""
    private = (
        ("connection", "close, x-inner"),
        ("keep-alive", "timeout=5"),
        ("x-inner", "CANARY"),
        ("server", "CANARY"),
        ("set-cookie", "CANARY"),
        ("proxy-authenticate", "CANARY"),
        ("upgrade", "CANARY"),
    )
    script = scripts.answer(200, {"ok": True}, private)
    error = scripts.answer(400, {"error": {"message": "no", "type": "x", "code": 400}}, private)
    async with asyncio.timeout(10), FaultServer(script, error) as worker, served.gateway(worker) as running:
        for _ in range(2):
            answer = await ask(running.port, post("/v1/embeddings", {"model": "sim", "input": "x"}))
            assert not any("CANARY" in value for _, value in answer.headers)
            assert len(answer.all("content-length") + answer.all("transfer-encoding")) == 1
            assert answer.header("connection") is None


class Keys:
    """An authenticator with one key."""

    def authenticate(self, headers: object) -> Caller:
        if (b"authorization", b"Bearer good") in list(headers):  # type: ignore[call-overload]
            return Caller("tenant", frozenset({"sim"}))
        raise RequestError(401, "A valid API key is required.", code="invalid_api_key", should_retry=False)


async def test_a_caller_is_known_before_its_body_is_read() -> None:
    """Without a key nothing is read, promised or sent on; health is open."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        served.gateway(worker, authenticator=Keys()) as running,
    ):
        refused = await ask(running.port, post(CHAT, chat(stream=False)))
        assert (401, "invalid_api_key") == (refused.status, refused.json()["error"]["code"])
        assert worker.connections == []
        assert (await ask(running.port, request("GET", "/v1/models"))).status == 401
        assert (await ask(running.port, request("GET", "/health"))).status == 200
        key = {"authorization": "Bearer good"}
        assert (await ask(running.port, post(CHAT, chat(stream=False), key))).status == 200
        assert [(None, 401), ("tenant", 200)] == [
            (record.tenant, record.status) for record in [await running.records.record(index) for index in (0, 1)]
        ]
        async with connect(running.port) as client:
            client.send(post(CHAT, b"12345", {"expect": "100-continue"})[:-5])
            assert (await client.answer()).status == 401
            assert await client.at_end()


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/unknown", "/health"])
async def test_preflights_come_before_everything(path: str) -> None:
    """Allowed origins are told what they may send; others learn nothing; no key is asked for."""
    wanted = "authorization,content-type,x-stainless-os"
    headers = {"access-control-request-method": "POST", "access-control-request-headers": wanted}
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_json()) as worker,
        served.gateway(worker, authenticator=Keys(), cors_origins=["https://a.test"]) as running,
    ):
        good = await ask(running.port, request("OPTIONS", path, {"origin": "https://a.test", **headers}))
        bad = await ask(running.port, request("OPTIONS", path, {"origin": "https://b.test", **headers}))

        assert (204, "https://a.test") == (good.status, good.header("access-control-allow-origin"))
        assert good.header("access-control-allow-headers") == wanted
        assert good.header("access-control-max-age")
        assert bad.header("access-control-allow-origin") is None
        assert [answer.header("vary") for answer in (good, bad)] == ["Origin", "Origin"]


async def test_cors_headers_are_on_answers_and_errors() -> None:
    """A browser shows a script nothing of an answer without them."""
    async with (
        asyncio.timeout(10),
        FaultServer(scripts.chat_stream()) as worker,
        served.gateway(worker, cors_origins=["*"]) as running,
    ):
        for body in (chat(), {"model": "none"}):
            answer = await ask(running.port, post(CHAT, body, {"origin": "https://a.test"}))
            assert answer.header("access-control-allow-origin") == "*"
            assert "x-request-id" in (answer.header("access-control-expose-headers") or "")
            assert answer.header("access-control-allow-credentials") is None


def test_no_middleware_hides_departures() -> None:
    """Starlette's BaseHTTPMiddleware swallows http.disconnect: only plain ASGI middleware is used."""
    relay = Relay(None, None, ConnectionPools(), RelayPolicy())  # type: ignore[arg-type]
    app = create_app(relay, readiness=None)  # type: ignore[arg-type]

    assert not any(issubclass(middleware.cls, BaseHTTPMiddleware) for middleware in app.user_middleware)  # type: ignore[arg-type]
