"""What corpus tests say often: events of a healthy chat stream, error objects, clients."""

from __future__ import annotations

import json
from typing import Any

import openai

from loadtest.servers import frames
from tests.proxy.raw_client import Answer, RawConnection

EVENTS = frames.ChatStream().events(usage=False)
"""A whole chat answer without usage: role, three tokens, finish, [DONE]."""
INTERNALS = (b"127.0.0.1", b"Traceback", b"Error(", b"site-packages", b"gateway/", b".py")
"""What must not be in any answer: addresses, files, exceptions."""


def error_object(body: bytes) -> dict[str, Any]:
    """The OpenAI error object that a body consists of; every field is there and of the type that SDKs expect."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["message"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert isinstance(error["param"], str | None)
    assert isinstance(error["code"], str | None)
    return dict(error)


def error_in(event: bytes) -> dict[str, Any]:
    """The error object of an in-band error event on the OpenAI routes."""
    assert event.startswith(b"data: "), event
    assert event.endswith(b"\n\n"), event
    return error_object(event[6:])


def no_invented_success(body: bytes) -> None:
    """Nothing in a failed stream makes it look complete."""
    assert b"[DONE]" not in body
    assert b'"finish_reason":"stop"' not in body


def nothing_internal(body: bytes) -> None:
    """No address, file or exception of the gateway or its worker is in the bytes."""
    assert [] == [word for word in INTERNALS if word in body]


async def read_events(client: RawConnection, answer: Answer, count: int) -> None:
    """Read chunks until so many events have come, or the end."""
    while len(answer.events) < count:
        if not await client.chunk(answer):
            return


def sdk(port: int, *, max_retries: int = 0) -> openai.AsyncOpenAI:
    """The OpenAI SDK; use as a context manager."""
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="client-key", max_retries=max_retries, timeout=10
    )
