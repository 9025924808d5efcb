"""The view of a request that the gateway needs, read from its bytes without parsing what it does not need."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from gateway.errors import RequestError
from gateway.protocol.members import decode_members, scan_members
from gateway.protocol.multipart import read_fields
from gateway.protocol.prompt_prefix import prompt_prefix
from gateway.protocol.request_payloads import BOOLEAN, INTEGER, STREAM_OPTIONS, TEXT
from gateway.protocol.structure import check_structure
from gateway.types import Endpoint, Family

# Looking up a member of an enumeration is a call of a function; these are used for every request.
_AUDIO: Final = Endpoint.AUDIO
_RESPONSES: Final = Family.RESPONSES


MAX_MODEL_NAME: Final = 1024
"""Longest model name read, in characters."""


class RequestView:
    """
    What routing and relaying need of one request body; `body` are the client's bytes, unchanged.

    `include_usage` is None when the client did not set `stream_options.include_usage`.

    `members` are the top-level members as undecoded bytes, so that a rewrite need not read the body again; None for
    multipart bodies. `content_type` is the client's, needed to rewrite a multipart body.
    """

    __slots__ = (
        "body",
        "content_type",
        "endpoint",
        "family",
        "include_usage",
        "max_tokens",
        "members",
        "model",
        "n",
        "stream",
    )

    def __init__(  # spelt out, as is that of `ExchangeRecord`
        self,
        endpoint: Endpoint,
        family: Family,
        body: bytes,
        model: str | None,
        stream: bool,
        include_usage: bool | None,
        n: int,
        max_tokens: int | None,
        members: Mapping[str, msgspec.Raw] | None = None,
        content_type: str = "application/json",
    ) -> None:
        self.endpoint = endpoint
        self.family = family
        self.body = body
        self.model = model
        self.stream = stream
        self.include_usage = include_usage
        self.n = n
        self.max_tokens = max_tokens
        self.members = members
        self.content_type = content_type

    @property
    def prefix(self) -> bytes:
        """
        The beginning of the prompt as canonical bytes (role and text of the messages in order, or the prompt, or token
        ids), for prefix-aware routing; it is never logged. Made when it is asked for.
        """
        return b"" if self.members is None else prompt_prefix(self.family, self.members)


_FAMILIES: Final[Mapping[Endpoint, Family]] = MappingProxyType(
    {
        Endpoint.CHAT_COMPLETIONS: Family.CHAT,
        Endpoint.COMPLETIONS: Family.COMPLETIONS,
        Endpoint.RESPONSES: Family.RESPONSES,
        Endpoint.MESSAGES: Family.MESSAGES,
        Endpoint.COUNT_TOKENS: Family.MESSAGES,
        Endpoint.EMBEDDINGS: Family.PLAIN,
        Endpoint.SCORE: Family.PLAIN,
        Endpoint.RERANK: Family.PLAIN,
        Endpoint.AUDIO: Family.PLAIN,
        Endpoint.TOKENIZE: Family.PLAIN,
        Endpoint.DETOKENIZE: Family.PLAIN,
    }
)

# First the field that wins: vLLM reads max_completion_tokens before max_tokens.
TOKEN_LIMITS: Final[Mapping[Family, tuple[str, ...]]] = MappingProxyType(
    {
        Family.CHAT: ("max_completion_tokens", "max_tokens"),
        Family.COMPLETIONS: ("max_tokens",),
        Family.RESPONSES: ("max_output_tokens",),
        Family.MESSAGES: ("max_tokens",),
        Family.PLAIN: (),
    }
)

_UNIQUE: Final = ("model", "stream")
_QUOTED_MODEL, _QUOTED_STREAM = b'"model"', b'"stream"'
_FORM_FIELDS: Final = frozenset(_UNIQUE)
# Below this size looking for suspicious bytes is cheaper than locating every member; above, it is dearer.
_SMALL: Final = 64 * 1024
_MAX_COUNT: Final = 2**31 - 1
_UTF8_STEP: Final = 1024 * 1024


def family_of(endpoint: Endpoint) -> Family:
    """The API family of an endpoint."""
    return _FAMILIES[endpoint]


def parse_request(body: bytes, endpoint: Endpoint, content_type: str, *, max_depth: int) -> RequestView:
    """
    Read what the gateway needs of a request body.

    Args:
        body: The decoded body (no content coding).
        endpoint: What was asked for; it decides which fields count.
        content_type: The client's header, "" when absent.
        max_depth: Deepest nesting allowed, in arrays and objects.

    Raises:
        RequestError: 400; its message never echoes the body.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "multipart/form-data" and endpoint is _AUDIO:
        return _parse_form(body, endpoint, content_type)
    if media_type != "application/json":
        expected = "application/json" + (" or multipart/form-data" if endpoint is _AUDIO else "")
        raise RequestError(400, f"Unsupported content type: expected {expected}.", code="unsupported_content_type")
    members = _decode(body, max_depth)
    family = _FAMILIES[endpoint]
    if family is _RESPONSES:
        _check_stands_alone(members)
    return RequestView(
        endpoint,
        family,
        body,
        _model(members.get("model")),
        _boolean(members.get("stream"), "stream") or False,
        _include_usage(members.get("stream_options")),
        _count(members.get("n")) or 1,
        _max_tokens(members, family),
        members,
        content_type,
    )


def _parse_form(body: bytes, endpoint: Endpoint, content_type: str) -> RequestView:
    fields = read_fields(body, content_type, _FORM_FIELDS)
    model = stream = None
    if (named := fields.get("model")) is not None:
        model = _model_name(named.value.decode("utf-8", "replace"))
    if (named := fields.get("stream")) is not None:
        # Form values are text; these are the spellings that FastAPI reads as true.
        stream = named.value.strip().lower() in (b"true", b"1", b"on", b"yes", b"t", b"y")
    return RequestView(endpoint, _FAMILIES[endpoint], body, model, stream or False, None, 1, None, None, content_type)


def _decode(body: bytes, max_depth: int) -> dict[str, msgspec.Raw]:
    if not body.isascii():
        _check_utf8(body)
    check_structure(body, max_depth)
    try:
        members = decode_members(body)
    except msgspec.ValidationError as error:
        raise RequestError(400, "The request body must be a JSON object.", code="invalid_json") from error
    except msgspec.DecodeError as error:
        raise RequestError(400, _why_malformed(body, error), code="invalid_json") from error
    except RecursionError as error:
        raise RequestError(400, "The JSON body is nested too deeply.", code="json_too_complex") from error
    if (
        len(body) > _SMALL
        or body.find(b"\\u00") >= 0
        or body.count(_QUOTED_MODEL) > 1
        or body.count(_QUOTED_STREAM) > 1
    ):
        _check_unique(body, members)
    return members


def _check_utf8(body: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), _UTF8_STEP):
            decoder.decode(body[start : start + _UTF8_STEP])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise RequestError(400, "The request body is not valid UTF-8.", code="invalid_json") from error


def _why_malformed(body: bytes, error: msgspec.DecodeError) -> str:
    if not body.strip():
        return "The request body is empty; expected a JSON object."
    if body.startswith(b"\xef\xbb\xbf"):
        return "The request body begins with a byte order mark; expected a JSON object."
    # msgspec names what is wrong and the byte offset, never the text.
    return f"The request body is not valid JSON: {error}."


def _check_unique(body: bytes, members: Mapping[str, msgspec.Raw]) -> None:
    """Readers differ in which of two equal keys wins, so routing and worker could disagree about the model."""
    keys = [member.key for member in scan_members(body, members)]
    for key in _UNIQUE:
        if keys.count(key) > 1:
            raise RequestError(
                400, f"The request body names '{key}' more than once.", code="duplicate_field", param=key
            )


def _check_stands_alone(members: Mapping[str, msgspec.Raw]) -> None:
    """
    Refuse what only the worker that stored an earlier response could serve. Workers come and go and share nothing:
    asked by chance, one of several would know it now and then, which is worse than never.
    """
    if _text(members.get("previous_response_id"), "previous_response_id") is not None:
        raise RequestError(
            404,
            "Stored responses are not kept across workers here: send the whole conversation instead.",
            code="previous_response_not_found",
            param="previous_response_id",
            should_retry=False,
        )
    if _boolean(members.get("background"), "background"):
        raise RequestError(
            400,
            "Background responses are not supported: they are not stored across workers, so nobody could fetch them.",
            code="unsupported_parameter",
            param="background",
        )


def _model(raw: msgspec.Raw | None) -> str | None:
    return _model_name(_text(raw, "model"))


def _text(raw: msgspec.Raw | None, param: str) -> str | None:
    if raw is None:
        return None
    try:
        return TEXT.decode(raw)
    except msgspec.DecodeError as error:
        raise _invalid(param, "a string") from error


def _model_name(model: str | None) -> str | None:
    if model == "" or (model is not None and len(model) > MAX_MODEL_NAME):
        raise _invalid("model", f"1 to {MAX_MODEL_NAME} characters")
    return model


def _boolean(raw: msgspec.Raw | None, param: str) -> bool | None:
    if raw is None:
        return None
    try:
        return BOOLEAN.decode(raw)
    except msgspec.DecodeError as error:
        raise _invalid(param, "true or false") from error


def _include_usage(raw: msgspec.Raw | None) -> bool | None:
    if raw is None:
        return None
    try:
        options = STREAM_OPTIONS.decode(raw)
    except msgspec.DecodeError as error:
        raise _invalid("stream_options", "an object with boolean fields") from error
    return None if options is None else options.include_usage


def _count(raw: msgspec.Raw | None) -> int | None:
    """A positive integer; None for anything else, which is left for the worker to refuse."""
    if raw is None:
        return None
    try:
        value = INTEGER.decode(raw)
    except msgspec.DecodeError:
        return None
    return value if value is not None and 0 < value <= _MAX_COUNT else None


def _max_tokens(members: Mapping[str, msgspec.Raw], family: Family) -> int | None:
    for name in TOKEN_LIMITS[family]:
        value = _count(members.get(name))
        if value is not None:
            return value
    return None


def _invalid(param: str, expected: str) -> RequestError:
    return RequestError(400, f"Invalid '{param}': expected {expected}.", code="invalid_value", param=param)
