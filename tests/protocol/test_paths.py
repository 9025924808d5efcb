"""Paths: the allow-list in its accepted spellings, and nothing beside it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.paths import InferenceRoute, ModelList, ModelRetrieve, resolve
from gateway.types import Endpoint

CANONICAL = {
    b"/v1/chat/completions": Endpoint.CHAT_COMPLETIONS,
    b"/v1/completions": Endpoint.COMPLETIONS,
    b"/v1/responses": Endpoint.RESPONSES,
    b"/v1/messages": Endpoint.MESSAGES,
    b"/v1/messages/count_tokens": Endpoint.COUNT_TOKENS,
    b"/v1/embeddings": Endpoint.EMBEDDINGS,
    b"/v1/score": Endpoint.SCORE,
    b"/v1/rerank": Endpoint.RERANK,
    b"/v1/audio/transcriptions": Endpoint.AUDIO,
    b"/v1/audio/translations": Endpoint.AUDIO,
    b"/v1/audio/speech": Endpoint.AUDIO,
    b"/tokenize": Endpoint.TOKENIZE,
    b"/detokenize": Endpoint.DETOKENIZE,
}


@pytest.mark.parametrize("path", CANONICAL)
def test_every_public_route_is_found_and_keeps_its_path(path: bytes) -> None:
    """The path sent to the worker is the canonical one."""
    assert InferenceRoute(CANONICAL[path], path.decode(), frozenset({"POST"})) == resolve(path)


@pytest.mark.parametrize("path", CANONICAL)
def test_c66_c67_base_urls_configured_by_hand_work(path: bytes) -> None:
    """Trailing and doubled slashes, /v1 missing or twice, /openai in front, the endpoint as base URL."""
    bare = path.removeprefix(b"/v1")
    expected = resolve(path)

    for spelling in (
        path + b"/",
        path + b"//",
        b"/" + path,
        path.replace(b"/", b"//"),
        bare,
        b"/v1" + bare,
        b"/v1/v1" + bare,
        b"/v1/" + bare,
        b"/openai/v1" + bare,
        path + bare,
        path + path,
        b"/v1" + bare + b"/v1" + bare,
    ):
        assert expected == resolve(spelling), spelling


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"/v1",
        b"/v1/",
        b"/sleep",
        b"/v1/sleep",
        b"/wake_up",
        b"/pause",
        b"/collective_rpc",
        b"/reset_prefix_cache",
        b"/v1/load_lora_adapter",
        b"/v1/unload_lora_adapter",
        b"/start_profile",
        b"/abort_requests",
        b"/server_info",
        b"/invocations",
        b"/inference/v1/generate",
        b"/metrics",
        b"/openapi.json",
        b"/v1/chat/completions/render",
        b"/v1/chat/completions/batch",
        b"/v1/chat/completions/x",
        b"/v1/files",
        b"/v1/batches",
        b"/v1/chat/../../sleep",
        b"/v1/./completions",
        b"/v1/%63ompletions",
        b"/v1/completions%2f",
        b"v1/completions",
        b"http://127.0.0.1:9/v1/completions",
        b"/v1/\xc3\xa9",
        b"/V1/completions",
        b"/v1/" + b"a" * 5000,
        b"/v1/responses/..",
        b"/v1/responses/%2e%2e",
        b"/v1/responses/a%2fb",
        b"/v1/responses/a%0d%0ab",
        b"/v1/responses/a b",
        b"/v1/responses/r1/delete",
        b"/x/models/m",
        b"/v1/models/a/../b",
        b"/v1/models/%2e%2e",
        b"/v1/models/..%2fsleep",
    ],
)
def test_c67_nothing_else_is_public(path: bytes) -> None:
    """Operator routes of vLLM, unknown routes, dot segments, encoded and absolute spellings."""
    assert resolve(path) is None


def test_stored_responses_have_routes_of_their_own() -> None:
    """Retrieve and cancel; the id is one segment of harmless characters."""
    assert InferenceRoute(Endpoint.RESPONSES, "/v1/responses/resp_1", frozenset({"GET"}), "resp_1") == resolve(
        b"/v1/responses/resp_1"
    )
    assert InferenceRoute(Endpoint.RESPONSES, "/v1/responses/resp_1/cancel", frozenset({"POST"}), "resp_1") == resolve(
        b"/responses/resp_1/cancel/"
    )


@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/models/", b"/models", b"//v1//models", b"/openai/v1/models"])
def test_the_model_list(path: bytes) -> None:
    """In the same spellings."""
    assert ModelList() == resolve(path)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"org/name-7b", "org/name-7b"),
        (b"org%2Fname-7b", "org/name-7b"),
        (b"org%2fname-7b/", "org/name-7b"),
        (b"a%20b", "a b"),
        (b"a:1@2+3", "a:1@2+3"),
        (b"%C3%A9", "é"),
        (b"a%2525", "a%25"),
        (b"v1", "v1"),
        (b"..a", "..a"),
        (b"x/models/y", "x/models/y"),
    ],
)
def test_c64_a_model_id_is_decoded_once(raw: bytes, expected: str) -> None:
    """Raw or percent-encoded, with slashes, colons, spaces; a plus is a plus."""
    assert ModelRetrieve(expected) == resolve(b"/v1/models/" + raw)
    assert ModelRetrieve(expected) == resolve(b"/models/" + raw)


@given(st.binary(max_size=60) | st.text(st.sampled_from("/.%v1mode2fls")).map(str.encode))
@settings(deadline=None, max_examples=150)
def test_no_path_crashes_or_escapes(path: bytes) -> None:
    """Whatever the bytes: a public route or None, and never a dot segment in what is sent upstream."""
    route = resolve(b"/" + path)

    if isinstance(route, InferenceRoute):
        assert not {"", ".", ".."} & set(route.path.split("/")[1:])
