"""Errors as clients of each API family expect them, and workers' errors brought into that form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.errors import RequestError
from gateway.protocol.in_band import InBandError
from gateway.protocol.stream_payloads import loads
from gateway.types import Family, Outcome

Headers = list[tuple[bytes, bytes]]

MAX_RETRY_AFTER_S = 60
"""Clients differ in how long a pause they accept; up to a minute all of them do."""

MAX_MESSAGE = 2000
"""Longest message taken over from a worker, in characters."""

_ANTHROPIC_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        529: "overloaded_error",
    }
)

# Status: (type, code) for a worker's error that names none of OpenAI's.
_OPENAI_KINDS: Final[Mapping[int, tuple[str, str | None]]] = MappingProxyType(
    {
        404: ("invalid_request_error", "not_found"),
        408: ("server_error", "upstream_timeout"),
        413: ("invalid_request_error", "request_too_large"),
        429: ("requests", "rate_limit_exceeded"),
        500: ("server_error", "upstream_error"),
        501: ("server_error", "not_implemented"),
        502: ("server_error", "upstream_error"),
        503: ("server_error", "upstream_overloaded"),
        504: ("server_error", "upstream_timeout"),
    }
)

_FAILURES: Final[Mapping[Outcome, tuple[int, str, str]]] = MappingProxyType(
    {
        Outcome.REJECTED: (503, "overloaded", "The gateway is at its limit. Please try again later."),
        Outcome.NO_WORKER: (503, "no_worker_available", "No worker of this model is available right now."),
        Outcome.UPSTREAM_CONNECT: (502, "upstream_unreachable", "The model's worker could not be reached."),
        Outcome.UPSTREAM_ERROR: (502, "upstream_error", "The model's worker failed while serving the request."),
        Outcome.UPSTREAM_TIMEOUT: (504, "upstream_timeout", "The model's worker did not answer in time."),
        Outcome.UPSTREAM_INCOMPLETE: (502, "stream_incomplete", "The answer ended before it was complete."),
        Outcome.CLIENT_CLOSED: (499, "client_closed", "The client closed the request."),
        Outcome.SHUTDOWN: (503, "shutting_down", "The gateway is shutting down. Please try again."),
        Outcome.INTERNAL: (500, "internal_error", "The gateway failed to handle the request."),
    }
)

_CONTEXT_LENGTH = re.compile(
    r"maximum (?:context|model) length|context length (?:is|of) only|longer than the maximum model length"
    r"|exceeds? (?:the )?(?:model's )?(?:max_model_len|maximum context|context (?:length|window))",
    re.IGNORECASE,
)
# Output limits name the context length too, but shortening the prompt does not mend them.
_OUTPUT_LIMIT_PARAMS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})

# What tells an outsider about the inside: addresses, files, memory, traces.
_URL = re.compile(r"\b(?:https?|wss?|tcp|unix|file|grpc)://[^\s'\"`<>)\]}]+", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}|localhost)(?::\d{1,5})?(?![\w.]\d)"
    r"|\[[0-9a-fA-F:]*:[0-9a-fA-F:]*\](?::\d{1,5})?"
    r"|(?<![\w.-])(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z][A-Za-z0-9-]{0,62}:\d{2,5}(?!\d)",
)
_PATH = re.compile(r"(?<![\w/<.])(?:/(?!v1/)(?:[\w.@+~-]+/)+[\w.@+~-]*|~/[\w./@+-]+|[A-Za-z]:\\[^\s'\"]+)")
_TRACE = re.compile(r"(?:\s*Traceback \(most recent call last\):|\s*\n\s*File \").*", re.DOTALL)
_OBJECT_AT = re.compile(r" at 0x[0-9a-fA-F]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")


def error_body(family: Family, error: RequestError, request_id: str) -> bytes:
    """The body of a non-2xx response."""
    return _dump(_envelope(family, error, request_id))


def error_headers(error: RequestError) -> Headers:
    """content-type, retry-after (at most `MAX_RETRY_AFTER_S`) and x-should-retry; the request ids are `headers`'."""
    headers: Headers = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        seconds = min(max(math.ceil(error.retry_after_s), 1), MAX_RETRY_AFTER_S)
        headers.append((b"retry-after", b"%d" % seconds))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    return headers


def error_event(family: Family, error: RequestError, request_id: str, sequence_number: int = 0) -> bytes:
    """
    The event that ends a failed stream; nothing may follow it, above all no `[DONE]`.

    Args:
        sequence_number: For responses: one more than the last one relayed (`StreamObserver.next_sequence`).
    """
    if family is Family.RESPONSES:
        payload: dict[str, object] = {
            "type": "error",
            "code": error.code or error.type,
            "message": error.message,
            "param": error.param,
            "sequence_number": sequence_number,
        }
        return b"event: error\ndata: %s\n\n" % _dump(payload)
    body = _dump(_envelope(family, error, request_id))
    if family is Family.MESSAGES:
        return b"event: error\ndata: %s\n\n" % body
    return b"data: %s\n\n" % body


def failure(outcome: Outcome, *, retry_after_s: float | None = None) -> RequestError:
    """
    The gateway's own error for an outcome that is not the client's fault: static text, nothing internal.

    Raises:
        KeyError: OK and CLIENT_ERROR, which are no failures of ours.
    """
    status, code, message = _FAILURES[outcome]
    return RequestError(status, message, type="server_error", code=code, retry_after_s=retry_after_s)


def normalise_upstream_error(
    status: int, content_type: str, body: bytes, family: Family, retry_after: str | None = None
) -> RequestError:
    """
    What the client is told about a worker's non-2xx answer, whatever its shape.

    A worker's 401 or 403 means that our key is wrong, not the client's: 502. A redirect is none of the client's
    business either.

    Args:
        status: The worker's status.
        content_type: Its header, "" when absent.
        body: The beginning of its body, as much as was read.
        family: For the wording of the type; the envelope is `error_body`'s.
        retry_after: The worker's Retry-After, if any; kept when it is a number of seconds.
    """
    pause = _seconds(retry_after)
    if status in (401, 403) or not 400 <= status <= 599:
        return failure(Outcome.UPSTREAM_ERROR)
    message, kind, code, param = _read_error(content_type, body)
    if status >= 500 and (not message or "cannot schedule new futures" in message):
        message = "The model's worker failed while serving the request."
    elif not message:
        message = f"The model's worker refused the request with status {status}."
    return _error(status, message, kind, code, param, pause, family)


def from_in_band(error: InBandError, family: Family = Family.CHAT) -> RequestError:
    """The status error that an in-band error stands for, as long as no response has been started."""
    status = 502 if error.status in (401, 403) else error.status
    return _error(status, error.message, error.type, error.code, error.param, None, family)


def client_message(text: str) -> str:
    """A worker's message without addresses, paths and stack traces, at most `MAX_MESSAGE` characters."""
    text = _TRACE.sub("", text[: 4 * MAX_MESSAGE])
    text = _URL.sub("<url>", text)
    text = _ADDRESS.sub("<address>", text)
    text = _PATH.sub("<path>", text)
    text = _OBJECT_AT.sub("", text)
    return _CONTROL.sub(" ", text).strip()[:MAX_MESSAGE]


def _error(
    status: int, message: str, kind: str, code: str | None, param: str | None, pause: float | None, family: Family
) -> RequestError:
    message = client_message(message) or "The model's worker failed while serving the request."
    type_, default = _OPENAI_KINDS.get(
        status, ("invalid_request_error", None) if status < 500 else ("server_error", "upstream_error")
    )
    # vLLM's types are class names and its codes are the status: neither is what clients look for.
    if re.fullmatch(r"[a-z]+(?:_[a-z]+)+", kind):
        type_ = kind
    if code is None or re.fullmatch(r"[a-z][a-z0-9_]{2,63}", code) is None:
        code = default
    if param is not None:
        param = param.removeprefix("body.")[:200]
    if status in (400, 413, 422) and param not in _OUTPUT_LIMIT_PARAMS and _CONTEXT_LENGTH.search(message):
        type_, code = "invalid_request_error", "context_length_exceeded"
    if code == "not_found" and (param == "model" or "model `" in message):
        code = "model_not_found"
    return RequestError(status, message, type=type_, code=code, param=param, retry_after_s=pause)


def _read_error(content_type: str, body: bytes) -> tuple[str, str, str | None, str | None]:
    """message, type, code and param out of whatever a worker sent; "" and None for what it did not say."""
    try:
        found = loads(body)
    except ValueError:
        found = None
        # A proxy's page names its software and itself; a short plain text is usually a message.
        plain = content_type.partition(";")[0].strip().lower() in ("text/plain", "")
        text = body[:MAX_MESSAGE].decode("utf-8", "replace").strip()
        if plain and text and not text.startswith(("<", "{", "[")):
            return text, "", None, None
    if not isinstance(found, dict):
        return (found if isinstance(found, str) else ""), "", None, None
    error = found.get("error")
    if isinstance(error, str):
        return error, "", None, None
    if isinstance(error, dict):
        found = error
    message = found.get("message")
    if not isinstance(message, str):
        message = _detail(found.get("detail"))
    code, param = found.get("code"), found.get("param")
    return (
        message,
        str(found.get("type") or ""),
        code if isinstance(code, str) else None,
        param if isinstance(param, str) else None,
    )


def _detail(detail: object) -> str:
    """FastAPI's `detail`: a text, or a list of what is wrong where (without the input it echoes)."""
    if isinstance(detail, str):
        return detail
    if not isinstance(detail, list):
        return ""
    problems = []
    for problem in detail[:5]:
        if isinstance(problem, dict) and isinstance(problem.get("msg"), str):
            where = problem.get("loc")
            place = ".".join(str(part) for part in where[1:]) if isinstance(where, list) else ""
            problems.append(f"{place}: {problem['msg']}" if place else problem["msg"])
    return "; ".join(problems)


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After in seconds, capped; a date is dropped, because the worker's clock is not ours."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        return None
    return min(seconds, float(MAX_RETRY_AFTER_S)) if seconds >= 0 else None


def _envelope(family: Family, error: RequestError, request_id: str) -> dict[str, object]:
    if family is Family.MESSAGES:
        kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id}
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def _dump(payload: dict[str, object]) -> bytes:
    # ASCII escapes: a message may hold lone surrogates, and no line separator may reach an SSE line.
    return json.dumps(payload, separators=(",", ":")).encode("ascii")
