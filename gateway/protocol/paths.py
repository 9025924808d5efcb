"""From a raw request path to what is asked for: the allow-list of public routes and their accepted spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote_to_bytes

from gateway.types import Endpoint


@dataclass(frozen=True, slots=True)
class InferenceRoute:
    """
    A route relayed to a worker. `path` is the canonical path to send upstream; `methods` those it accepts (OPTIONS and,
    beside GET, HEAD are the caller's matter). `item` is the percent-decoded id of a stored object, "" without.
    """

    endpoint: Endpoint
    path: str
    methods: frozenset[str]
    item: str = ""


@dataclass(frozen=True, slots=True)
class ModelList:
    """GET /v1/models."""


@dataclass(frozen=True, slots=True)
class ModelRetrieve:
    """GET /v1/models/{id}; the id is percent-decoded once."""

    model_id: str


Route = InferenceRoute | ModelList | ModelRetrieve

_POST = frozenset({"POST"})
_GET = frozenset({"GET"})


def _post(endpoint: Endpoint, path: str | None = None) -> InferenceRoute:
    return InferenceRoute(endpoint, path or endpoint.value, _POST)


# By canonical path without its leading `/v1`; the two of vLLM's own routes that have none are found here as well.
_ROUTES: Final[Mapping[str, InferenceRoute]] = MappingProxyType(
    {
        "/chat/completions": _post(Endpoint.CHAT_COMPLETIONS),
        "/completions": _post(Endpoint.COMPLETIONS),
        "/responses": _post(Endpoint.RESPONSES),
        "/messages": _post(Endpoint.MESSAGES),
        "/messages/count_tokens": _post(Endpoint.COUNT_TOKENS),
        "/embeddings": _post(Endpoint.EMBEDDINGS),
        "/score": _post(Endpoint.SCORE),
        "/rerank": _post(Endpoint.RERANK),
        "/audio/transcriptions": _post(Endpoint.AUDIO, "/v1/audio/transcriptions"),
        "/audio/translations": _post(Endpoint.AUDIO, "/v1/audio/translations"),
        "/audio/speech": _post(Endpoint.AUDIO, "/v1/audio/speech"),
        "/tokenize": _post(Endpoint.TOKENIZE),
        "/detokenize": _post(Endpoint.DETOKENIZE),
    }
)
_MODELS = "/models"
_RESPONSE_ITEM = re.compile(r"/responses/([^/]+)(/cancel)?")
_SAFE_ITEM = re.compile(r"[A-Za-z0-9._:-]{1,256}")
_MAX_PATH = 4096
_PREFIXES = ("/openai", "/v1")


def inference_routes() -> Iterable[InferenceRoute]:
    """Every route in its canonical spelling, but for those of stored objects."""
    return _ROUTES.values()


def resolve(raw_path: bytes) -> Route | None:
    """
    What a path means; None: not a public route (404). The query string must be cut off before.

    Accepted beside the canonical spelling, because base URLs are configured by hand: a trailing slash, doubled
    slashes, a missing or repeated `/v1`, `/openai` before it, and an endpoint given as the base URL, so that the
    client appends it again. Nothing is percent-decoded but the ids at the end, and those once; a path with dot
    segments is no public route.
    """
    if len(raw_path) > _MAX_PATH:
        return None
    # An id may hold anything but must not be touched by the clean-up of slashes.
    head, models, model_id = _split_model_id(raw_path)
    path = _bare(head)
    if path is None:
        return None
    if path == _MODELS:
        return ModelRetrieve(model_id) if models and model_id else ModelList()
    if models:
        return None
    route = _ROUTES.get(path) or _ROUTES.get(_without_repetition(path))
    return route if route is not None else _response_item(path)


def _split_model_id(raw_path: bytes) -> tuple[bytes, bool, str]:
    head, models, rest = raw_path.partition(b"/models/")
    if not models:
        return raw_path, False, ""
    raw_id = rest.strip(b"/")
    if any(segment in (b".", b"..") for segment in unquote_to_bytes(raw_id).split(b"/")):
        return b"", True, ""
    return head + b"/models", True, unquote_to_bytes(raw_id).decode("utf-8", "replace")


def _bare(raw_path: bytes) -> str | None:
    """The path with single slashes and without its prefixes; None when it is not plain."""
    if not raw_path.isascii():
        return None
    segments = [segment for segment in raw_path.decode("ascii").split("/") if segment]
    if any(segment in (".", "..") for segment in segments) or not raw_path.startswith(b"/"):
        return None
    path = "/" + "/".join(segments)
    for prefix in _PREFIXES:
        while path.startswith(prefix + "/"):
            path = path.removeprefix(prefix)
    return path


def _without_repetition(path: str) -> str:
    """`/chat/completions/chat/completions` (or with `/v1` between) as `/chat/completions`."""
    for known in _ROUTES:
        if path in (known + known, f"{known}/v1{known}"):
            return known
    return ""


def _response_item(path: str) -> InferenceRoute | None:
    match = _RESPONSE_ITEM.fullmatch(path)
    if match is None:
        return None
    item = unquote_to_bytes(match[1]).decode("utf-8", "replace")
    # Ids are the worker's own; one that could be another path or header is none of them.
    if _SAFE_ITEM.fullmatch(item) is None or item in (".", ".."):
        return None
    methods, suffix = (_POST, "/cancel") if match[2] else (_GET, "")
    return InferenceRoute(Endpoint.RESPONSES, f"/v1/responses/{item}{suffix}", methods, item)
