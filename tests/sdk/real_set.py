"""
The small set of the SDK matrix for a real model: the same answer direct and through the gateway, from every SDK.

A real worker cuts its answer into events as it pleases, so texts and counts are compared, not events. For the engine's
tests; sampling is greedy, so that a worker which is asked twice says the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.sdk.matrix import Results, ask_with

REAL_OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "openai_sync": ("whole", "stream", "stream_usage", "completions", "responses_stream", "error_404"),
    "openai_async": ("whole", "stream", "stream_usage", "error_404"),
    "node": ("whole", "stream", "stream_usage", "completions", "error_404"),
    "anthropic_sync": ("whole", "accumulated", "count_tokens", "error_404"),
    "langchain_chat": ("whole", "stream", "stream_async", "error_404"),
    "litellm_client": ("whole", "stream", "stream_async", "error_404"),
}
"""What a text model without tool parser can do, by client; vLLM refuses several choices when sampling is greedy."""

_TEXTS = ("content", "text", "delta")
_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
_NO_TEXT = ("count_tokens", "error_404")


def run_real_set(client: str, base_url: str, worker_url: str, worker_key: str, model: str, home: Path) -> None:
    """
    Run a client's set against the worker and the gateway before it; raises AssertionError where they differ.

    Args:
        client: A key of `REAL_OPERATIONS`; the test is skipped, saying why, where it cannot run.
        base_url: The gateway, without `/v1`.
        worker_url: One of its workers, without `/v1`.
        worker_key: The key which that worker asks for; the gateway, open or with this key, is sent the same.
        model: Its public name, which is the worker's own.
        home: An empty folder for the client.
    """
    asked = ask_with(
        client, (worker_url, base_url), home, model=model, key=worker_key, operations=REAL_OPERATIONS[client]
    )
    results: Results = asyncio.run(asked)
    assert set(REAL_OPERATIONS[client]) == set(results.by_operation)
    for operation, (direct, through) in results.by_operation.items():
        told = f"{client} {operation}: direct {direct}, through the gateway {through}"
        for result in (direct, through):
            assert not (isinstance(result, dict) and "defect" in result), told
            assert (operation == "error_404") == (isinstance(result, dict) and bool(result.get("error"))), told
        if operation == "error_404":
            assert (404, direct["error"]) == (through["status"], through["error"]), told
        else:
            assert essence(direct) == essence(through), told
            assert operation in _NO_TEXT or essence(through)[0], told


def essence(result: Any) -> tuple[str, dict[str, int]]:
    """All text of a result, in order, and the largest of each token count."""
    texts: list[str] = []
    counts: dict[str, int] = {}

    def look(value: Any) -> None:
        if isinstance(value, list):
            for part in value:
                look(part)
        elif isinstance(value, dict):
            for name, part in value.items():
                if name in _TEXTS and isinstance(part, str):
                    texts.append(part)
                elif name in _COUNTS and isinstance(part, int):
                    counts[name] = max(part, counts.get(name, 0))
                else:
                    look(part)

    look(result)
    return "".join(texts), counts
