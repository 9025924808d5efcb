"""Errors on the wire: one envelope per family, workers' shapes brought into it, nothing internal in it."""

from __future__ import annotations

import json

import pytest

from gateway.errors import RequestError
from gateway.protocol.errors_wire import (
    MAX_MESSAGE,
    client_message,
    error_body,
    error_event,
    error_headers,
    failure,
    from_in_band,
    normalise_upstream_error,
)
from gateway.protocol.in_band import InBandError
from gateway.protocol.observer import Ending, StreamObserver
from gateway.types import Family, Outcome

OPENAI = [Family.CHAT, Family.COMPLETIONS, Family.RESPONSES, Family.PLAIN]
JSON = "application/json"
ERROR = RequestError(503, "too\u2028busy \ud83d", type="server_error", code="overloaded", param="n")


def upstream(status: int, body: object, content_type: str = JSON, retry_after: str | None = None) -> RequestError:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return normalise_upstream_error(status, content_type, text, Family.CHAT, retry_after)


@pytest.mark.parametrize("family", OPENAI)
def test_the_openai_envelope(family: Family) -> None:
    """message, type, param, code: always all four, under `error`."""
    assert {
        "error": {"message": ERROR.message, "type": "server_error", "param": "n", "code": "overloaded"}
    } == json.loads(error_body(family, ERROR, "r1"))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
    ],
)
def test_the_anthropic_envelope(status: int, expected: str) -> None:
    """The type follows the status, and the request id is in the body."""
    assert {"type": "error", "error": {"type": expected, "message": "m"}, "request_id": "r1"} == json.loads(
        error_body(Family.MESSAGES, RequestError(status, "m"), "r1")
    )


@pytest.mark.parametrize("family", list(Family))
def test_c04_the_error_event_ends_a_stream_as_a_failure(family: Family) -> None:
    """One event in the family's own form, one line of ASCII, no [DONE]; our own observer takes it for an error."""
    text = error_event(family, ERROR, "r1", sequence_number=7)
    observer = StreamObserver(family)
    observer.feed(text)

    assert text.isascii()
    assert text.endswith(b"\n\n")
    assert 1 == text.count(b"\n\n") == text.count(b"data: ")
    assert b"[DONE]" not in text
    assert (1, Ending.ERROR) == (observer.events, observer.verdict().ending)
    assert text.startswith(b"event: error\n") == (family in (Family.RESPONSES, Family.MESSAGES))


def test_c87_a_responses_error_event_has_a_text_code_and_the_next_number() -> None:
    """Also when the error has no code; strict clients refuse null."""
    event = error_event(Family.RESPONSES, RequestError(500, "m", type="server_error"), "r1", sequence_number=7)

    assert {"type": "error", "code": "server_error", "message": "m", "param": None, "sequence_number": 7} == json.loads(
        event.partition(b"data: ")[2]
    )


def test_error_headers_say_type_pause_and_whether_to_retry() -> None:
    """Retry-After in whole seconds, at least one, at most sixty: no SDK refuses or ignores that."""
    plain = RequestError(400, "m")

    assert [(b"content-type", b"application/json")] == error_headers(plain)
    for pause, expected in ((0.2, b"1"), (0, b"1"), (7.1, b"8"), (3600, b"60")):
        assert (b"retry-after", expected) in error_headers(RequestError(503, "m", retry_after_s=pause))
    assert (b"x-should-retry", b"false") in error_headers(RequestError(429, "m", should_retry=False))
    assert (b"x-should-retry", b"true") in error_headers(RequestError(503, "m", should_retry=True))


def test_every_failure_of_ours_has_a_status_and_a_code() -> None:
    """The table is complete for the outcomes that are failures."""
    for outcome in set(Outcome) - {Outcome.OK, Outcome.CLIENT_ERROR}:
        error = failure(outcome, retry_after_s=3)
        assert error.code is not None
        assert 499 <= error.status <= 504
        assert ("server_error", 3) == (error.type, error.retry_after_s)
    with pytest.raises(KeyError):
        failure(Outcome.OK)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        # vLLM's own shape, with class names and the status as code
        (
            404,
            {"error": {"message": "The model `nope` is not", "type": "NotFoundError", "param": "model", "code": 404}},
            ("The model `nope` is not", "invalid_request_error", "model_not_found", "model"),
        ),
        (
            400,
            {"error": {"message": "1 validation error", "type": "Bad Request", "param": "body.messages", "code": 400}},
            ("1 validation error", "invalid_request_error", None, "messages"),
        ),
        # OpenAI's words are kept
        (
            400,
            {"error": {"message": "m", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}},
            ("m", "invalid_request_error", "invalid_value", "n"),
        ),
        # flat, a string, FastAPI's two
        (
            400,
            {"object": "error", "message": "m", "type": "BadRequestError", "code": 400},
            ("m", "invalid_request_error", None, None),
        ),
        (503, {"error": "The model is scaling"}, ("The model is scaling", "server_error", "upstream_overloaded", None)),
        (404, {"detail": "Not Found"}, ("Not Found", "invalid_request_error", "not_found", None)),
        (
            422,
            {"detail": [{"loc": ["body", "n", 0], "msg": "too small", "input": "SECRET"}, {"msg": "x"}, 5]},
            ("n.0: too small; x", "invalid_request_error", None, None),
        ),
        (400, "just text", ("just text", "invalid_request_error", None, None)),
        (
            400,
            {"message": 5, "detail": 5},
            ("The model's worker refused the request with status 400.", "invalid_request_error", None, None),
        ),
        (500, {}, ("The model's worker failed while serving the request.", "server_error", "upstream_error", None)),
        (418, [], ("The model's worker refused the request with status 418.", "invalid_request_error", None, None)),
        (
            500,
            {"error": {"message": "cannot schedule new futures after shutdown", "type": "InternalServerError"}},
            ("The model's worker failed while serving the request.", "server_error", "upstream_error", None),
        ),
    ],
)  # fmt: skip
def test_c72_every_shape_of_a_worker_becomes_one(
    status: int, body: object, expected: tuple[str, str, str | None, str | None]
) -> None:
    """The status stays; message, type, code and param are OpenAI's kinds of words."""
    error = upstream(status, body)

    assert (status, *expected) == (error.status, error.message, error.type, error.code, error.param)


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"<html><h1>502 nginx/1.2</h1>", "text/html", "The model's worker failed while serving the request."),
        (b"<html>", "text/plain", "The model's worker failed while serving the request."),
        (b"upstream busy\n", "text/plain; charset=utf-8", "upstream busy"),
        (b"upstream busy", "", "upstream busy"),
        (b"busy", "application/octet-stream", "The model's worker failed while serving the request."),
        (b'{"error": {"mess', "text/plain", "The model's worker failed while serving the request."),
        (b"", "", "The model's worker failed while serving the request."),
        (b"\xff\xfe busy", "text/plain", "\ufffd\ufffd busy"),
    ],
)
def test_c72_pages_and_plain_text(body: bytes, content_type: str, expected: str) -> None:
    """A proxy's page is not a message; a short text is."""
    assert expected == upstream(502, body, content_type).message


@pytest.mark.parametrize("status", [401, 403, 301, 302, 200])
def test_c72_a_worker_that_refuses_our_key_is_a_failed_worker(status: int) -> None:
    """Its words would tell the client about a key that is not the client's. Redirects are no answer either."""
    error = upstream(status, {"error": "Unauthorized"})

    assert (502, "upstream_error") == (error.status, error.code)
    assert "Unauthorized" not in error.message


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 1024 tokens. However, you requested 2000 tokens.",
        "The decoder prompt (length 2000) is longer than the maximum model length of 1024.",
        "The prompt exceeds max_model_len",
        "Input length (5000) exceeds model's maximum context length (4096).",
    ],
)
def test_c08_an_over_long_prompt_has_the_code_that_agents_look_for(message: str) -> None:
    """vLLM never sends it."""
    error = upstream(
        400, {"error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    )

    assert ("context_length_exceeded", "invalid_request_error", 400) == (error.code, error.type, error.status)
    assert message == error.message


def test_an_over_large_output_limit_is_not_an_over_long_prompt() -> None:
    """An agent that shortened its prompt for that would shorten it for ever."""
    message = "max_tokens=9000 cannot be greater than the maximum context length 1024"

    assert upstream(400, {"error": {"message": message, "param": "max_tokens", "code": 400}}).code is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [("7", 7.0), ("0.5", 0.5), ("3600", 60.0), ("-1", None), ("Wed, 21 Oct 2026", None), (None, None)],
)
def test_c34_a_workers_pause_is_kept_up_to_a_minute(header: str | None, expected: float | None) -> None:
    """Seconds only: a date is by the worker's clock."""
    assert expected == upstream(429, {"error": {"message": "m"}}, retry_after=header).retry_after_s
    assert "rate_limit_exceeded" == upstream(429, {"error": {"message": "m"}}).code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no connection to 10.0.0.7:8000 now", "no connection to <address> now"),
        ("at http://worker-3.internal:8000/v1?key=s!", "at <url>"),
        ("host worker-3.ns.svc:8000, [fe80::1]:80", "host <address>, <address>"),
        ("localhost:8000 and localhost", "<address> and <address>"),
        ("file /home/u/models/a.safetensors missing", "file <path> missing"),
        ("in C:\\models\\a.bin", "in <path>"),
        ("failed\nTraceback (most recent call last):\n  File \"/x/y.py\", line 3\nBoom", "failed"),
        ('failed\n  File "/x/y.py", line 3', "failed"),
        ("<Engine object at 0x7f00aa>", "<Engine object>"),
        ("a\x1b[31m\x00b", "a [31m b"),
        # what must stay
        ("The model `org/name-7b` is 1.2.3", "The model `org/name-7b` is 1.2.3"),
        ("see /v1/models or a/b", "see /v1/models or a/b"),
        ("ratio 3/4; code:500; n: 1.5:20", "ratio 3/4; code:500; n: 1.5:20"),
        ("x" * (MAX_MESSAGE + 5), "x" * MAX_MESSAGE),
    ],
)  # fmt: skip
def test_c77_no_address_path_or_trace_reaches_a_client(text: str, expected: str) -> None:
    """And model names, routes and numbers are left alone."""
    assert expected == client_message(text)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (503, "503", (503, "upstream_overloaded")),
        (400, "400", (400, None)),
        (401, None, (502, "upstream_error")),
        (404, "model_not_found", (404, "model_not_found")),
        (429, None, (429, "rate_limit_exceeded")),
    ],
)
def test_c06_an_in_band_error_before_the_response_becomes_its_status(
    status: int, code: str | None, expected: tuple[int, str | None]
) -> None:
    """As if the worker had answered with it at once."""
    error = from_in_band(InBandError(status, "busy at 10.0.0.1:80", "InternalServerError", code, None, True))

    assert expected == (error.status, error.code)
    assert "busy at <address>" == error.message
