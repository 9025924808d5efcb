"""Keys on real sockets: who gets in, what they see, and that their slots come back whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.authentication import KeyAuthenticator
from gateway.keys import ApiKey, digest_of
from gateway.types import ModelView, Outcome, Phase
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Fin, Reset, Stall
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, Answer, ask, chat, connect, post, request
from tests.proxy.served import Served, model_policy, until, worker_view

pytestmark = pytest.mark.anyio

SECRET = "sk-CANARY-known"
BEARER = {"authorization": f"Bearer {SECRET}"}
MODELS = (ModelView("sim", ("alias",), 1), ModelView("secret", ("hidden",), 1))
EVENTS = frames.ChatStream().events(usage=False)
CORS = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-api-key,x-stainless-os",
}


def keys(**more: Any) -> KeyAuthenticator:
    """One key, `SECRET`."""
    authenticator = KeyAuthenticator(anonymous_allowed=True)
    sha256 = digest_of(SECRET.encode()).hex()
    authenticator.replace([ApiKey(id="key-00000001", name="acme", sha256=sha256, created=1, **more)])
    return authenticator


@pytest.mark.parametrize(
    ("path", "family"),
    [
        *((CHAT, "openai"), ("/v1/completions", "openai"), ("/v1/responses", "openai"), ("/v1/embeddings", "openai")),
        *(("/v1/messages", "anthropic"), ("/v1/messages/count_tokens", "anthropic"), ("/tokenize", "openai")),
    ],
)
async def test_c78_a_refusal_in_each_familys_envelope_echoes_nothing(gateway: Gateway, path: str, family: str) -> None:
    """Unknown, malformed, missing and revoked keys get the same bytes; no worker is asked; each is counted."""
    authenticator = keys()
    sent: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer sk-CANARY-unknown"},
        {"authorization": "sk-CANARY"},
        {"x-api-key": "sk-CANARY"},
        BEARER,
    ]
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker, authenticator=authenticator) as served,
    ):
        authenticator.replace([])
        answers = [await ask(served.port, post(path, chat(), {"x-request-id": "i", **each})) for each in sent]
        refused = [await served.records.record(index) for index in range(len(sent))]

    assert {401} == {answer.status for answer in answers}
    assert 1 == len({answer.body for answer in answers})
    body = answers[0].json()
    if family == "anthropic":
        assert ("error", "authentication_error") == (body["type"], body["error"]["type"])
    else:
        assert ("invalid_request_error", "invalid_api_key", None) == (
            body["error"]["type"],
            body["error"]["code"],
            body["error"]["param"],
        )
    for answer in answers:
        assert "CANARY" not in repr(answer.headers) + answer.body.decode()
        assert ("Bearer", "false") == (answer.header("www-authenticate"), answer.header("x-should-retry"))
        assert not any(word in answer.body.decode().lower() for word in ("sha256", "digest", "gateway", "keys.json"))
    assert worker.connections == []
    assert {(Outcome.CLIENT_ERROR, "invalid_api_key", None, 401)} == {
        (record.outcome, record.error_code, record.tenant, record.status) for record in refused
    }


async def test_c80_a_key_in_any_clients_form_reaches_the_worker_and_stays_here(gateway: Gateway) -> None:
    forms = [
        {"authorization": f"bearer {SECRET}"},
        {"authorization": f"BEARER  {SECRET} "},
        {"x-api-key": SECRET},
        {"api-key": SECRET},
    ]
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker, authenticator=keys()) as served,
    ):
        answers = [await ask(served.port, post(CHAT, chat(stream=False), form)) for form in forms]
        tenants = [(await served.records.record(index)).tenant for index in range(len(forms))]

    assert [200] * 4 == [answer.status for answer in answers]
    assert ["acme"] * 4 == tenants
    assert not any(b"CANARY" in received.raw for received in worker.requests)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models", "/v1/unknown"])
async def test_c81_a_preflight_needs_no_key(gateway: Gateway, path: str) -> None:
    """Browsers send none with it; a refusal still has the headers that let a page read it."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker, authenticator=keys(max_in_flight=1), cors_origins=["https://a.test"]) as served,
    ):
        allowed = await ask(served.port, request("OPTIONS", path, {"origin": "https://a.test", **CORS}))
        foreign = await ask(served.port, request("OPTIONS", path, {"origin": "https://b.test", **CORS}))
        plain = await ask(served.port, request("OPTIONS", path))
        refused = await ask(served.port, post(CHAT, chat(), {"origin": "https://a.test"}))

    assert (204, "https://a.test") == (allowed.status, allowed.header("access-control-allow-origin"))
    assert CORS["access-control-request-headers"] == allowed.header("access-control-allow-headers")
    assert foreign.header("access-control-allow-origin") is None
    assert plain.status != 401
    assert (401, "https://a.test") == (refused.status, refused.header("access-control-allow-origin"))


async def test_probes_are_open_and_the_list_of_models_is_not(gateway: Gateway) -> None:
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker, authenticator=keys()) as served,
    ):
        statuses = {
            path: (await ask(served.port, request("GET", path))).status
            for path in ("/health", "/ready", "/v1/models", "/v1/models/sim")
        }

    assert {"/health": 200, "/ready": 200, "/v1/models": 401, "/v1/models/sim": 401} == statuses


async def test_a_key_sees_and_uses_its_models_only(gateway: Gateway) -> None:
    """What is not for a key is, to it, not there: the answer is that for a model that does not exist, to the byte."""

    def asking(model: str) -> bytes:
        return post(CHAT, chat(stream=False) | {"model": model}, {**BEARER, "x-request-id": "i"})

    async with asyncio.timeout(20), FaultServer(scripts.chat_json()) as worker:
        view = worker_view(worker, "w1", model="secret")
        async with gateway(worker, view, models=MODELS, authenticator=keys(models=("sim",))) as served:
            listed = (await ask(served.port, request("GET", "/v1/models", BEARER))).json()["data"]
            retrieved = [
                (await ask(served.port, request("GET", f"/v1/models/{name}", BEARER))).status
                for name in ("sim", "alias", "secret", "hidden", "nosuch")
            ]
            used = [await ask(served.port, asking(model)) for model in ("sim", "alias", "secret", "hidden", "nosuch")]
            denied = await served.records.record(2)

    assert ["sim", "alias"] == [entry["id"] for entry in listed]
    assert [200, 200, 404, 404, 404] == retrieved
    assert [200, 200, 404, 404, 404] == [answer.status for answer in used]
    assert {"model_not_found"} == {answer.json()["error"]["code"] for answer in used[2:]}
    assert used[4].body.replace(b"nosuch", b"secret") == used[2].body
    assert ("acme", Outcome.CLIENT_ERROR) == (denied.tenant, denied.outcome)
    assert "secret" in denied.detail
    assert 2 == len(worker.requests)


def rejected(answer: Answer) -> bool:
    """True iff the answer is the rejection of a key at its limit, complete in every part."""
    if answer.status != 429:
        return False
    error = answer.json()["error"]
    assert ("requests", "rate_limit_exceeded", None) == (error["type"], error["code"], error["param"])
    assert "1" == answer.header("retry-after")
    return True


async def test_a_key_at_its_limit_is_rejected_at_once(gateway: Gateway) -> None:
    """Counted as such, with nothing sent to a worker; as soon as one request ends there is room again."""
    authenticator = keys(max_in_flight=2)
    script = scripts.stream(EVENTS[:2], end=Stall())
    async with asyncio.timeout(20), FaultServer(script, script, scripts.chat_json()) as worker:
        async with gateway(worker, authenticator=authenticator) as served, connect(served.port) as one:
            async with connect(served.port) as two:
                for number, client in enumerate((one, two)):
                    client.send(post(CHAT, chat(), BEARER))
                    await worker.request(number)
                answer = await ask(served.port, post(CHAT, chat(), BEARER))
                assert rejected(answer)
                record = await served.records.record(0)
                assert (Outcome.REJECTED, "tenant_limit", "rate_limit_exceeded", 429, "acme", "sim") == (
                    record.outcome,
                    record.rejection,
                    record.error_code,
                    record.status,
                    record.tenant,
                    record.model,
                )
                anthropic = await ask(served.port, post("/v1/messages", chat() | {"max_tokens": 1}, BEARER))
                assert (429, "rate_limit_error") == (anthropic.status, anthropic.json()["error"]["type"])
                assert 200 == (await ask(served.port, request("GET", "/v1/models", BEARER))).status
            await until(lambda: authenticator.in_flight == 1)
            assert 200 == (await ask(served.port, post(CHAT, chat(stream=False), BEARER))).status
        assert 3 == len(worker.requests)

    assert 0 == authenticator.in_flight


async def test_c89_slots_of_aborted_streams_are_free_at_once(gateway: Gateway) -> None:
    """Ten streams are cut off under a limit of two; not one slot is lost."""
    authenticator = keys(max_in_flight=2)
    async with (
        asyncio.timeout(30),
        FaultServer(scripts.stream(EVENTS[:2], end=Stall())) as worker,
        gateway(worker, authenticator=authenticator) as served,
    ):
        for number in range(10):
            async with connect(served.port) as client:
                client.send(post(CHAT, chat(), BEARER))
                answer = await client.head()
                assert 200 == answer.status, number
                await client.chunk(answer)
                client.reset()
            await until(lambda: authenticator.in_flight == 0)
        await served.idle()


async def test_a_client_that_asks_again_at_once_is_never_rejected(gateway: Gateway) -> None:
    """With a limit of one, a request's slot is free before its answer can have been read."""
    async with (
        asyncio.timeout(30),
        FaultServer(scripts.chat_stream()) as worker,
        gateway(worker, authenticator=keys(max_in_flight=1)) as served,
        connect(served.port) as client,
    ):
        for _ in range(50):
            client.send(post(CHAT, chat(), BEARER))
            assert 200 == (await client.answer()).status


async def _until_dead(served: Served) -> None:
    await served.reached(Phase.HEADERS)
    served.relay.shut_down()


@pytest.mark.parametrize(
    ("script", "path", "body", "status"),
    [
        pytest.param(scripts.chat_json(), CHAT, chat(stream=False), 200, id="answer"),
        pytest.param(scripts.chat_stream(), CHAT, chat(), 200, id="stream"),
        pytest.param(scripts.error(400, "no", "BadRequestError"), CHAT, chat(), 400, id="worker-400"),
        pytest.param(scripts.error(500, "no", "InternalServerError"), CHAT, chat(), 500, id="worker-500"),
        pytest.param(scripts.resets_at_once(), CHAT, chat(), 502, id="reset"),
        pytest.param(scripts.truncated(EVENTS[:2], Reset()), CHAT, chat(), 200, id="stream-reset"),
        pytest.param(scripts.truncated(EVENTS[:2], Fin()), CHAT, chat(), 200, id="stream-cut"),
        pytest.param(scripts.in_band_error(EVENTS[:2]), CHAT, chat(), 200, id="in-band"),
        pytest.param(scripts.never_answers(), CHAT, chat(), 504, id="timeout"),
        pytest.param(scripts.chat_json(), CHAT, b"{", 400, id="bad-body"),
        pytest.param(scripts.chat_json(), CHAT, {"model": "none"}, 404, id="no-model"),
        pytest.param(scripts.chat_json(), "/v1/responses/x", b"", 405, id="method"),
    ],
)
async def test_every_ending_gives_the_slot_back(
    gateway: Gateway, script: Any, path: str, body: object, status: int
) -> None:
    """Twice in a row under a limit of one, so that a slot that was kept shows."""
    authenticator = keys(max_in_flight=1)
    policy = model_policy(first_byte_s=0.1)
    async with (
        asyncio.timeout(20),
        FaultServer(script) as worker,
        gateway(worker, authenticator=authenticator, policy=policy) as served,
    ):
        for _ in range(2):
            assert status == (await ask(served.port, post(path, body, BEARER))).status
            await until(lambda: authenticator.in_flight == 0)
        await served.idle()


async def test_a_shut_down_and_a_defect_give_the_slot_back(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    authenticator = keys(max_in_flight=1)
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.never_answers()) as worker,
        gateway(worker, authenticator=authenticator) as served,
    ):
        cut, _ = await asyncio.gather(ask(served.port, post(CHAT, chat(), BEARER)), _until_dead(served))
        assert 503 == cut.status
        assert 0 == authenticator.in_flight

        def broken(*arguments: object) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(served.relay.dispatcher, "lease", broken)
        assert 500 == (await ask(served.port, post(CHAT, chat(), BEARER))).status
        assert 0 == authenticator.in_flight
        assert {} == served.busy()


async def test_a_revoked_key_ends_no_running_request(gateway: Gateway) -> None:
    """Its stream goes on to its end; the next request is refused; the slot is given back to what is gone."""
    authenticator = keys(max_in_flight=1)
    script = scripts.stream(scripts.gated(EVENTS, {2: "go"}))
    async with (
        asyncio.timeout(20),
        FaultServer(script) as worker,
        gateway(worker, authenticator=authenticator) as served,
        connect(served.port) as client,
    ):
        client.send(post(CHAT, chat(), BEARER))
        answer = await client.head()
        authenticator.replace([])
        assert 401 == (await ask(served.port, post(CHAT, chat(), BEARER))).status
        worker.release("go")
        await client.rest(answer)

        assert answer.complete
        assert answer.body.endswith(b"data: [DONE]\n\n")
        await served.idle()
