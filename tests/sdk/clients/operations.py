"""
How a client program of the matrix runs and reports: `python PROGRAM.py BASE_URL...`, one JSON line per result.

SDK_MODEL is the model to ask for (default `sim`), SDK_API_KEY the key to send, SDK_OPERATIONS names the operations to
run, with commas (default: all).

Imported by the programs beside it, which run in the environment of the SDKs: standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

MODEL = os.environ.get("SDK_MODEL", "sim")
API_KEY = os.environ.get("SDK_API_KEY", "unused")
TIMEOUT_S = 30.0
TOOL_NAMES = ("get_weather", "get_time")
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in TOOL_NAMES
]

Operation = Callable[[str], Any] | Callable[[str], Awaitable[Any]]


def ask(scenario: str) -> dict[str, Any]:
    """Model, messages and limits of a chat request; a real model gives the same answer every time."""
    messages = [{"role": "user", "content": scenario}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 64}


def described(error: BaseException) -> dict[str, Any]:
    """What a program that catches the SDK's exception can see of it."""
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or {}
    body = getattr(error, "body", None)
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    return {
        "error": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "code": getattr(error, "code", None),
        "type": getattr(error, "type", None),
        "param": getattr(error, "param", None),
        # litellm repeats the message in what it says of the original exception.
        "message": body["message"]
        if isinstance(body, dict) and "message" in body
        else str(error).split(" Original")[0],
        "retry_after": headers.get("retry-after"),
    }


def dumped(value: Any) -> Any:
    """A pydantic object as the SDK parsed it, without what it filled in itself."""
    return value.model_dump(mode="json", exclude_unset=True)


async def _result(operation: Operation, base_url: str, allowed: tuple[type[BaseException], ...]) -> Any:
    try:
        found = operation(base_url)
        return await found if inspect.isawaitable(found) else found
    except allowed as error:
        return described(error)
    except Exception as error:
        return {"defect": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def run(operations: Mapping[str, Operation], errors: tuple[type[BaseException], ...]) -> None:
    """Run every operation against every base URL of argv; `errors` are the SDK's own exceptions."""

    only = os.environ.get("SDK_OPERATIONS")
    chosen = {name: operations[name] for name in only.split(",")} if only else operations

    async def all_of_them() -> None:
        for number, base_url in enumerate(sys.argv[1:]):
            for name, operation in chosen.items():
                began = time.monotonic()
                result = await _result(operation, base_url, errors)
                line = {"target": number, "operation": name, "result": result, "seconds": time.monotonic() - began}
                print(json.dumps(line), flush=True)

    asyncio.run(all_of_them())


def partly(events: Any, take: Callable[[Any], Any]) -> dict[str, Any]:
    """What a stream yielded, and the exception that ended it, if one did."""
    taken: list[Any] = []
    try:
        for event in events:
            taken.append(take(event))  # noqa: PERF401 (what came before an error counts)
    except Exception as error:
        return {"taken": taken, **described(error)}
    return {"taken": taken}


async def partly_async(events: Any, take: Callable[[Any], Any]) -> dict[str, Any]:
    """The same for an asynchronous stream."""
    taken: list[Any] = []
    try:
        async for event in events:
            taken.append(take(event))  # noqa: PERF401 (what came before an error counts)
    except Exception as error:
        return {"taken": taken, **described(error)}
    return {"taken": taken}
