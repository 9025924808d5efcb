"""What every error of the gateway must look like, checked as the strictest client would."""

from __future__ import annotations

import json
from typing import Any

from tests.proxy.raw_client import Answer

MESSAGES = "/v1/messages"


def error_of(answer: Answer, *statuses: int, path: str = "") -> dict[str, Any]:
    """
    The error object of a non-2xx answer, which must be whole, JSON, of one of `statuses`, and in the family's envelope.

    `path` decides the family: Anthropic's envelope below `/v1/messages`, OpenAI's elsewhere.
    """
    assert answer.complete
    assert answer.status in statuses, (answer.status, answer.body[:300])
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-request-id")
    body = answer.json()
    error: dict[str, Any] = body["error"]
    if path.startswith(MESSAGES):
        assert {"type", "error", "request_id"} == set(body)
        assert body["type"] == "error"
        assert {"type", "message"} == set(error)
    else:
        assert {"error"} == set(body)
        assert {"message", "type", "param", "code"} == set(error)
        assert isinstance(error["param"], str | None)
        assert isinstance(error["code"], str | None)
    assert isinstance(error["type"], str)
    assert isinstance(error["message"], str)
    assert error["type"]
    assert error["message"]
    return error


def error_event_of(event: bytes) -> dict[str, Any]:
    """The payload of a single `data:` event, with or without an `event: error` line before it."""
    assert event.endswith(b"\n\n")
    line = event.removeprefix(b"event: error\n")
    assert line.startswith(b"data: {")
    assert b"\n" not in line[:-2]
    payload: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return payload
