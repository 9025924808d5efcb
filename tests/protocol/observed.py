"""Streams to observe, put together event by event, and the observer that has seen them."""

from __future__ import annotations

import json

from gateway.protocol.observer import StreamObserver
from gateway.types import Family

DONE = b"data: [DONE]\n\n"


def event(payload: object, name: str = "", end: str = "\n", space: str = " ", compact: bool = True) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":") if compact else None)
    head = f"event:{space}{name}{end}" if name else ""
    return f"{head}data:{space}{text}{end}{end}".encode()


def chunk(index: int = 0, finish: str | None = None, **delta: object) -> dict[str, object]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }


ROLE, TOKEN, LAST = chunk(role="assistant", content=""), chunk(content="Z"), chunk(content="", finish="length")

USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 22, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}},
}


def observe(*pieces: bytes, family: Family = Family.CHAT, n: int = 1) -> StreamObserver:
    observer = StreamObserver(family, n)
    for piece in pieces:
        observer.feed(piece)
    return observer


def pieces(text: bytes, size: int = 65_536) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]
