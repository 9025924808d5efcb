"""API keys as clients present them, and browsers: preflights before keys, headers that scripts may read."""

from __future__ import annotations

import pytest

from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.corpus.envelopes import error_of
from tests.corpus.keyed import SECRET, authenticator, bearer
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, Answer, ask, chat, connect, post, request

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
ORIGIN = "https://app.example"
GUARDED = [
    ("POST", CHAT),
    ("POST", MESSAGES),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/sim"),
]
BODY = b'{"model":"sim","messages":[],"max_tokens":5,"input":"x"}'

WRONG: list[list[tuple[str, str]]] = [
    [],
    [("authorization", "Bearer sk-CANARY-unknown")],
    [("authorization", f"Bearer {SECRET}x")],
    [("authorization", f"Bearer {SECRET[:-1]}")],
    [("authorization", f"Bearer {SECRET.upper()}")],
    [("authorization", "Bearer")],
    [("authorization", "Bearer ")],
    [("authorization", SECRET)],
    [("authorization", f"Bearer{SECRET}")],
    [("authorization", f"Basic {SECRET}")],
    [("authorization", f"Token {SECRET}")],
    [("authorization", f"Bearer {SECRET} {SECRET}")],
    [("authorization", f"Bearer {SECRET},x")],
    [("authorization", "Bearer \xff\xfe")],
    [("authorization", "Bearer " + "x" * 10_000)],
    [("authorization", f"Bearer {SECRET}"), ("authorization", "Bearer other")],
    [("authorization", "Bearer other"), ("authorization", f"Bearer {SECRET}")],
    [("authorization", f"Bearer {SECRET}"), ("x-api-key", "other")],
    [("x-api-key", "sk-CANARY-unknown")],
    [("x-api-key", "")],
    [("x-api-key", f"Bearer {SECRET}")],
    [("x-api-key", SECRET), ("x-api-key", "other")],
    [("api-key", "sk-CANARY-unknown")],
    [("cookie", f"authorization={SECRET}")],
]
RIGHT: list[list[tuple[str, str]]] = [
    [("authorization", f"Bearer {SECRET}")],
    [("authorization", f"bearer {SECRET}")],
    [("Authorization", f"BEARER {SECRET}")],
    [("AUTHORIZATION", f"bEaReR {SECRET}")],
    [("authorization", f"Bearer  {SECRET}")],
    [("authorization", f"Bearer    {SECRET} ")],
    [("x-api-key", SECRET)],
    [("X-Api-Key", f" {SECRET} ")],
    [("api-key", SECRET)],
    [("authorization", f"Bearer {SECRET}"), ("x-api-key", SECRET)],
]


def with_lines(method: str, path: str, lines: list[tuple[str, str]], body: bytes = BODY) -> bytes:
    """A request with these header lines, repeated names included."""
    text = [f"{method} {path} HTTP/1.1", "host: gateway.test", "content-type: application/json"]
    text += [f"{name}: {value}" for name, value in lines]
    sent = body if method == "POST" else b""
    return "\r\n".join([*text, f"content-length: {len(sent)}", "", ""]).encode("latin-1") + sent


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_c78_every_refusal_is_the_same(relay: Relay, method: str, path: str) -> None:
    """Missing, malformed, unknown: one body, nothing of what was sent, no worker, no look at the request."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, authenticator=authenticator()) as gate,
        connect(gate.port) as client,
    ):
        bodies = set()
        for lines in WRONG:
            for body in (BODY, b"{broken"):
                client.send(with_lines(method, path, lines, body))
                answer = await client.answer()
                error = error_of(answer, 401, path=path)

                assert "authentication_error" == error["type"] or "invalid_api_key" == error["code"]
                assert "false" == answer.header("x-should-retry")
                identity = answer.header("x-request-id") or ""
                bodies.add(answer.body.replace(identity.encode(), b"ID"))
                assert SECRET.encode() not in answer.body
                assert b"CANARY" not in answer.body
        assert 1 == len(bodies)
        assert [] == worker.requests


async def test_c78_a_refusal_names_no_insides(relay: Relay) -> None:
    """No hash of the key, no table, product or tenant; nothing is echoed."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker, authenticator=authenticator()) as gate:
        answer = await ask(gate.port, post(CHAT, BODY, bearer("sk-CANARY-unknown")))

        error = error_of(answer, 401)
        assert ("invalid_request_error", "invalid_api_key", None) == (error["type"], error["code"], error["param"])
        for word in ("tenant", "hash", "sha", "database", "file", "revoked", "sk-"):
            assert word not in error["message"].lower()
        assert answer.header("www-authenticate") in (None, "Bearer")


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_c80_keys_are_accepted_as_clients_send_them(relay: Relay, path: str) -> None:
    """Any case of the scheme, more than one space, and both other headers."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, authenticator=authenticator()) as gate,
        connect(gate.port) as client,
    ):
        for lines in RIGHT:
            client.send(with_lines("POST", path, lines))
            assert 200 == (await client.answer()).status, lines

        assert len(RIGHT) == len(worker.requests)
        assert all(SECRET.encode() not in received.raw for received in worker.requests)
        record = None if gate.served is None else await gate.served.records.record(0)
        assert record is None or record.tenant == "tenant-a"


async def test_c80_ambiguous_and_malformed_keys_are_refused(relay: Relay) -> None:
    """Two different keys, a tab, no scheme, another scheme: 401, although the right key is in there."""
    tab = [("authorization", f"Bearer\t{SECRET}")]
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, authenticator=authenticator()) as gate,
        connect(gate.port) as client,
    ):
        statuses = []
        for lines in (*WRONG, tab):
            client.send(with_lines("POST", CHAT, lines))
            statuses.append((await client.answer()).status)

        assert [401] * len(WRONG) == statuses[:-1]
        assert statuses[-1] in (200, 401)
        assert len(worker.requests) == statuses.count(200)


async def test_c80_a_key_only_for_some_models(relay: Relay) -> None:
    """For the key the others do not exist, wherever it asks: refused alike, not listed, not retrieved."""
    keys = authenticator(models=("other",))
    async with FaultServer(scripts.chat_json()) as worker, relay(worker, authenticator=keys) as gate:
        refused = [await ask(gate.port, post(CHAT, {"model": name}, bearer())) for name in ("sim", "nope", "alias")]
        listed = await ask(gate.port, request("GET", "/v1/models", bearer()))
        retrieved = await ask(gate.port, request("GET", "/v1/models/sim", bearer()))

        assert ["model_not_found"] * 3 == [error_of(answer, 404)["code"] for answer in refused]
        assert [] == listed.json()["data"]
        error_of(retrieved, 404)
        assert [] == worker.requests


@pytest.mark.parametrize("target", ["/health", "/ready"])
async def test_c80_health_needs_no_key(relay: Relay, target: str) -> None:
    """Load balancers have none."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker, authenticator=authenticator()) as gate:
        assert 200 == (await ask(gate.port, request("GET", target))).status


STAINLESS = ("arch", "lang", "os", "package-version", "retry-count", "runtime", "runtime-version", "timeout", "async")
SDK_HEADERS = [
    "authorization",
    "content-type",
    *(f"x-stainless-{name}" for name in STAINLESS),
    "openai-organization",
    "openai-project",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "x-api-key",
    "idempotency-key",
    "x-request-id",
]
EVERYWHERE = [
    CHAT,
    MESSAGES,
    "/v1/responses",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/a%2Fb",
    "/health",
    "/nowhere",
]


def preflight(target: str, origin: str = ORIGIN, method: str = "POST") -> bytes:
    """What a browser sends before the request itself; it carries no key."""
    return request(
        "OPTIONS",
        target,
        {
            "origin": origin,
            "access-control-request-method": method,
            "access-control-request-headers": ",".join(SDK_HEADERS),
        },
    )


def allowed_headers(answer: Answer) -> set[str]:
    """Names in `Access-Control-Allow-Headers`."""
    return {name.strip().lower() for name in (answer.header("access-control-allow-headers") or "").split(",")}


@pytest.mark.parametrize("origins", [(ORIGIN,), ("*",), ("https://first.example", ORIGIN)])
async def test_c81_preflights_come_before_keys(relay: Relay, origins: tuple[str, ...]) -> None:
    """On every route, also one that does not exist: allowed, without credentials, without a key, without a worker."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, authenticator=authenticator(), cors_origins=origins) as gate,
        connect(gate.port) as client,
    ):
        for target in EVERYWHERE:
            client.send(preflight(target))
            answer = await client.answer()

            assert answer.status in (200, 204)
            assert ("*" if origins == ("*",) else ORIGIN) == answer.header("access-control-allow-origin")
            assert answer.header("access-control-allow-credentials") is None
        assert [] == worker.requests


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://app.example.evil", "http://app.example", "null", ""]
)
async def test_c81_other_origins_get_nothing(relay: Relay, origin: str) -> None:
    """Neither the preflight nor an answer names an origin that is not configured."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, authenticator=authenticator(), cors_origins=(ORIGIN,)) as gate,
    ):
        answers = [
            await ask(gate.port, preflight(CHAT, origin)),
            await ask(gate.port, post(CHAT, BODY, {"origin": origin, **bearer()})),
            await ask(gate.port, post(CHAT, BODY, {"origin": origin})),
        ]
        assert [200, 401] == [answer.status for answer in answers[1:]]
        for answer in answers:
            assert answer.header("access-control-allow-origin") is None
            assert answer.header("access-control-allow-headers") is None
        assert len(worker.requests) == 1


async def test_c81_without_origins_there_is_no_cors(relay: Relay) -> None:
    """The default: no header gives anything to any browser."""
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate:
        answers = [
            await ask(gate.port, preflight(CHAT)),
            await ask(gate.port, post(CHAT, chat(stream=False), {"origin": ORIGIN})),
        ]
        names = [name.lower() for answer in answers for name, _ in answer.headers]
        assert not any(name.startswith("access-control-") for name in names)
        assert len(worker.requests) == 1


async def test_c82_what_sdks_send_is_allowed(relay: Relay) -> None:
    """Every header that the SDKs send from a browser; the answer may be cached, by origin."""
    async with (
        FaultServer(scripts.chat_json()) as worker,
        relay(worker, authenticator=authenticator(), cors_origins=(ORIGIN,)) as gate,
    ):
        for method in ("POST", "GET", "DELETE"):
            answer = await ask(gate.port, preflight(CHAT, method=method))

            assert set(SDK_HEADERS) <= allowed_headers(answer)
            assert method in (answer.header("access-control-allow-methods") or "")
            assert 0 < int(answer.header("access-control-max-age") or "0") <= 86_400
            assert "origin" in (answer.header("vary") or "").lower()
        assert [] == worker.requests


@pytest.mark.parametrize("hostile", ["x\x7f", "a b;c", "x-a,\xff", "x" * 5000, '"', "<script>"])
async def test_c82_requested_headers_are_not_echoed_blindly(relay: Relay, hostile: str) -> None:
    """Only a plain list of names is repeated."""
    headers = {"origin": ORIGIN, "access-control-request-method": "POST", "access-control-request-headers": hostile}
    async with FaultServer(scripts.chat_json()) as worker, relay(worker, cors_origins=(ORIGIN,)) as gate:
        answer = await ask(gate.port, request("OPTIONS", CHAT, headers))

        granted = answer.header("access-control-allow-headers") or ""
        assert answer.status in (200, 204, 400)
        assert granted.replace("-", "").replace(",", "").replace(" ", "").isalnum() or not granted
        assert len(granted) < 4200
        assert [] == worker.requests


EXPOSED = {"x-request-id", "request-id", "retry-after", "openai-processing-ms", "x-should-retry"}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c82_scripts_may_read_what_sdks_need(relay: Relay, stream: bool) -> None:
    """Answers, streams, refusals and unknown routes carry origin, exposed headers and Vary exactly once."""
    script = scripts.chat_stream() if stream else scripts.chat_json()
    async with (
        FaultServer(script) as worker,
        relay(worker, authenticator=authenticator(), cors_origins=(ORIGIN,)) as gate,
    ):
        answers = [
            await ask(gate.port, post(CHAT, chat(stream=stream), {"origin": ORIGIN, **bearer()})),
            await ask(gate.port, post(CHAT, chat(stream=stream), {"origin": ORIGIN})),
            await ask(gate.port, post("/v1/nowhere", b"{}", {"origin": ORIGIN, **bearer()})),
            await ask(gate.port, request("GET", "/v1/models", {"origin": ORIGIN, **bearer()})),
            await ask(gate.port, request("PUT", CHAT, {"origin": ORIGIN, **bearer()})),
        ]
        assert [200, 401, 404, 200, 405] == [answer.status for answer in answers]
        for answer in answers:
            assert ORIGIN == answer.header("access-control-allow-origin")
            exposed = {
                name.strip() for name in (answer.header("access-control-expose-headers") or "").lower().split(",")
            }
            assert EXPOSED <= exposed
            assert any(name.startswith("x-ratelimit-") for name in exposed)
            assert "origin" in ",".join(answer.all("vary")).lower()
            assert answer.header("x-request-id")
        assert len(worker.requests) == 1
