"""Paths and methods: what is served under which spelling, and that everything else is a plain 404 or 405."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from gateway.types import ModelView, WorkerState
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.corpus.envelopes import error_of
from tests.corpus.relayed import Relay
from tests.corpus.specimens import NAMES
from tests.proxy.raw_client import CHAT, ask, chat, connect, post, request
from tests.proxy.served import worker_view

pytestmark = pytest.mark.anyio

MODELS = tuple(ModelView(name, (), 1) for name in NAMES)


async def test_c64_every_listed_model_can_be_retrieved(relay: Relay) -> None:
    """Percent-encoded as python does it, wholly encoded, and raw where a path allows it."""
    async with FaultServer(scripts.models_json()) as worker, relay(worker, models=MODELS) as gate:
        listed = await ask(gate.port, request("GET", "/v1/models"))
        assert list(NAMES) == [entry["id"] for entry in listed.json()["data"]]
        async with connect(gate.port) as client:
            for name in NAMES:
                spellings = {quote(name, safe=""), quote(name, safe="!$&'()*+,;=:@"), quote(name, safe="/:@+,;=")}
                for spelling in sorted(spellings):
                    client.send(request("GET", f"/v1/models/{spelling}"))
                    answer = await client.answer()

                    assert (200, name) == (answer.status, answer.json().get("id")), spelling
                    assert "model" == answer.json()["object"]


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models/nope",
        "/v1/models/org",
        "/v1/models/org%252Fname-7b",
        "/v1/models/a/../org%2Fname-7b",
        "/v1/models/a/../../../health",
        "/v1/models/%2e%2e/%2e%2e/health",
        "/v1/models/..%2f..%2fhealth",
        "/v1/models/%2e%2e",
        "/v1/models/.",
        "/v1/models/%00",
        "/v1/models/%ff%fe",
        "/v1/models/" + "m" * 5000,
        "/v1/models/%",
        "/v1/models/%zz",
    ],
)
async def test_c64_other_ids_are_not_found(relay: Relay, target: str) -> None:
    """404 with an error object; dot segments lead nowhere, encoded or not, and nothing is decoded twice."""
    async with FaultServer(scripts.models_json()) as worker, relay(worker, models=MODELS) as gate:
        answer = await ask(gate.port, request("GET", target))

        error = error_of(answer, 404)
        assert error["code"] in ("model_not_found", "route_not_found")
        assert len(answer.body) < 1000
        assert [] == worker.requests


async def test_c65_the_model_list_does_not_depend_on_workers(relay: Relay) -> None:
    """Odd metadata, an unreachable worker, none at all: the configured models, once each, always in the same order."""
    odd = scripts.answer(200, {"object": "list", "data": [{"id": "other", "root": None, "permission": []}, None]})
    models = (ModelView("b", ("a-alias",), 5, 4096), ModelView("a", (), 6), ModelView("c", (), 7))
    async with FaultServer(odd) as worker, FaultServer(refuse=True) as down:
        views = [worker_view(worker, "w0", model="b"), worker_view(down, "w1", model="b")]
        async with relay(*views, models=models) as gate:
            answers = [await ask(gate.port, request("GET", "/v1/models")) for _ in range(2)]
            if gate.served is not None:
                gate.served.publish([worker_view(down, "w1", model="b", state=WorkerState.FAILED)])
            answers.append(await ask(gate.port, request("GET", "/v1/models")))

            assert [200] * 3 == [answer.status for answer in answers]
            assert answers[0].body == answers[1].body == answers[2].body
            data = answers[0].json()["data"]
            assert "list" == answers[0].json()["object"]
            assert ["b", "a-alias", "a", "c"] == [entry["id"] for entry in data]
            assert [("model", int, str)] * 4 == [
                (entry["object"], type(entry["created"]), type(entry["owned_by"])) for entry in data
            ]
            assert [] == worker.requests


PLACES = [
    ("POST", f"{CHAT}/"),
    ("POST", "/v1//chat/completions"),
    ("POST", "//v1/chat/completions//"),
    ("POST", "/v1/v1/chat/completions"),
    ("POST", "/chat/completions"),
    ("POST", "/openai/v1/chat/completions"),
    ("POST", f"{CHAT}/chat/completions"),
    ("POST", f"{CHAT}{CHAT}"),
]
LISTS = ["/v1/models/", "//v1//models", "/models", "/v1/v1/models", "/openai/v1/models"]
NOWHERE = [
    ("POST", "/v1/chat"),
    ("POST", "/v1/chat/completions/x"),
    ("POST", "/v2/chat/completions"),
    ("POST", "/v1/chat/../chat/completions"),
    ("POST", "/v1/%63hat/completions"),
    ("POST", "/api/generate"),
    ("GET", "/"),
    ("GET", "/v1"),
    ("GET", "/v1/"),
    ("GET", "/health/"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/files"),
    ("POST", "/v1/moderations"),
]


@pytest.mark.parametrize("forwarded", [{}, {"x-forwarded-proto": "https", "x-forwarded-host": "evil.test"}])
async def test_c66_nothing_redirects(relay: Relay, forwarded: dict[str, str]) -> None:
    """A redirect would lose the body or point to a wrong scheme and host: no path answers with one."""
    places = [*PLACES, *(("GET", path) for path in LISTS), *NOWHERE]
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        for method, target in places:
            client.send(request(method, target, {"content-type": "application/json", **forwarded}, b"{}"))
            answer = await client.answer()

            assert not 300 <= answer.status <= 399, target
            assert answer.header("location") is None
            assert b"evil.test" not in answer.body


@pytest.mark.parametrize(("method", "target"), PLACES)
@pytest.mark.parametrize("query", ["", "?api-version=x&beta=true"])
async def test_c66_c67_spellings_of_a_base_url_are_served(relay: Relay, method: str, target: str, query: str) -> None:
    """What people configure by hand reaches the worker under the canonical path, with its whole body."""
    body = chat(stream=False)
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(target + query, body))

        assert 200 == answer.status
        received = worker.requests[0]
        assert (method, CHAT) == (received.method, received.target)
        assert body == received.json()


@pytest.mark.parametrize("target", LISTS)
async def test_c67_spellings_of_the_model_list_are_served(relay: Relay, target: str) -> None:
    """The same for a GET."""
    async with FaultServer(scripts.models_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, request("GET", target))

        assert (200, "list") == (answer.status, answer.json()["object"])
        assert [] == worker.requests


@pytest.mark.parametrize(("method", "target"), NOWHERE)
async def test_c67_other_paths_are_not_found(relay: Relay, method: str, target: str) -> None:
    """404 with an error object that says where the API is; no worker sees the request."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, request(method, target, {"content-type": "application/json"}, b"{}"))

        assert CHAT in error_of(answer, 404)["message"]
        assert [] == worker.requests


OPERATOR_ROUTES = [
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/update_weights",
    "/start_profile",
    "/abort_requests",
    "/server_info",
    "/invocations",
    "/inference/v1/generate",
    "/metrics",
    "/version",
    "/load",
    "/ping",
    "/v1/chat/completions/render",
    "/v1/chat/completions/batch",
    "/generative_scoring",
    "/pooling",
]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_c67_a_workers_own_routes_are_out_of_reach(relay: Relay, method: str) -> None:
    """An allow-list, never a catch-all: also not with slashes, dots and encodings around the path."""
    async with FaultServer(scripts.answer(200, {})) as worker, relay(worker) as gate, connect(gate.port) as client:
        for route in OPERATOR_ROUTES:
            for target in (
                route,
                f"/v1{route}",
                f"{CHAT}/..{route}",
                f"/v1/chat/completions/%2e%2e{route}",
                f"{route}/",
            ):
                client.send(request(method, target, {"content-type": "application/json"}, b'{"model":"sim"}'))
                error_of(await client.answer(), 404)

        assert [] == worker.requests


@pytest.mark.parametrize("target", ["/health", "/ready", "/v1/models", "/v1/models/sim", "/v1/models/nope"])
async def test_c83_head_is_get_without_its_body(relay: Relay, target: str) -> None:
    """Same status and headers, no body, and the connection goes on."""
    async with FaultServer(scripts.models_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(request("GET", target))
        get = await client.answer()
        client.send(request("HEAD", target))
        head = await client.answer(head=True)
        client.send(request("GET", target))
        again = await client.answer()

        volatile = ("date", "x-request-id", "request-id")
        kept = [[pair for pair in answer.headers if pair[0].lower() not in volatile] for answer in (get, head, again)]
        assert get.status == head.status == again.status
        assert sorted(kept[0]) == sorted(kept[1]) == sorted(kept[2])
        assert get.body == again.body
        assert [] == worker.requests


WRONG = [(method, CHAT) for method in ("GET", "PUT", "DELETE", "PATCH")]
WRONG += [("GET", "/v1/messages"), ("PUT", "/v1/models"), ("POST", "/v1/models"), ("DELETE", "/v1/models/sim")]
WRONG += [("GET", "/v1/embeddings"), ("POST", "/health"), ("PUT", "/ready"), ("TRACE", CHAT), ("BREW", CHAT)]


@pytest.mark.parametrize(("method", "target"), WRONG)
async def test_c83_a_wrong_method_is_405(relay: Relay, method: str, target: str) -> None:
    """With `Allow` and an error object, on every route; a method that HTTP does not know may be 400 as well."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, request(method, target, {"content-type": "application/json"}, b"{}"))

        if method == "BREW" and answer.status == 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            return
        error_of(answer, 405, path=target)
        allowed = {word.strip() for word in (answer.header("allow") or "").split(",")}
        assert allowed
        assert method not in allowed
        assert ("POST" in allowed) == (target in (CHAT, "/v1/messages", "/v1/embeddings"))
        assert [] == worker.requests


async def test_c83_head_on_an_inference_route_is_405_without_body(relay: Relay) -> None:
    """The framing must hold: a body after HEAD would be read as the next answer."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        client.send(request("HEAD", CHAT))
        head = await client.answer(head=True)
        client.send(request("GET", "/health"))

        assert 405 == head.status
        assert 200 == (await client.answer()).status
        assert [] == worker.requests


@pytest.mark.parametrize("target", [CHAT, "/v1/models", "/health", "/v1/messages"])
async def test_c83_options_says_what_is_allowed(relay: Relay, target: str) -> None:
    """Without an Origin it is no preflight: 204 and Allow."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answer = await ask(gate.port, request("OPTIONS", target))

        assert 204 == answer.status
        assert answer.header("allow")
        assert [] == worker.requests
