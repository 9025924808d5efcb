"""
Ready-made answers for the fault server: whole streams, JSON bodies, errors in every shape, truncations.

`stream` is the general form: any list of event bytes with steps between them. The others fill it with vLLM's frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from loadtest.servers import frames
from loadtest.servers.http1 import EVENT_STREAM, JSON, LAST_CHUNK, Headers, chunk, response, response_head
from loadtest.servers.message_frames import MessagesStream, ResponsesStream, messages_body
from loadtest.servers.steps import Fin, Gate, Reset, Send, Stall, Step

CHUNKED: Headers = (("transfer-encoding", "chunked"),)
SERVER: Headers = (("server", "uvicorn"),)


def stream(
    events: Iterable[bytes | Step],
    *,
    status: int = 200,
    headers: Headers = EVENT_STREAM,
    end: Step | None = None,
    cut_every: int = 0,
    glue_last: bool = True,
) -> tuple[Step, ...]:
    """
    A chunked response, one chunk per event.

    Steps among the events run in their place. `end` replaces the proper end: `Reset()`, `Fin()` (close without the last
    chunk), `Stall()`. With `glue_last` the terminating chunk leaves in the same write as the last event. `cut_every`
    splits every write into pieces of that many bytes.
    """
    head = response_head(status, (*SERVER, *headers, *CHUNKED))
    steps: list[Step] = [Send(head, every=cut_every)]
    steps += [Send(chunk(e), every=cut_every) if isinstance(e, bytes) else e for e in events]
    if end is not None:
        return (*steps, end)
    last = steps[-1]
    if glue_last and isinstance(last, Send) and len(steps) > 1:
        steps[-1] = Send(last.data + LAST_CHUNK, every=cut_every)
        return tuple(steps)
    return (*steps, Send(LAST_CHUNK, every=cut_every))


def answer(status: int, body: object, headers: Headers = (), *, content: Headers = JSON) -> tuple[Step, ...]:
    """A response with content-length: bytes as they are, anything else as compact JSON."""
    data = body if isinstance(body, bytes) else frames.compact(body)
    return (Send(response(status, data, (*content, *headers))),)


def raw(data: bytes, end: Step | None = None, *, every: int = 0) -> tuple[Step, ...]:
    """Any bytes, then `end` (nothing: the connection stays open for the next request)."""
    return (Send(data, every=every), *([] if end is None else [end]))


def gated(events: Sequence[bytes], at: Mapping[int, str]) -> list[bytes | Step]:
    """Inserts `Gate(name)` before the event with that position."""
    listed: list[bytes | Step] = []
    for position, event in enumerate(events):
        if position in at:
            listed.append(Gate(at[position]))
        listed.append(event)
    return listed


def chat_stream(
    tokens: Sequence[str] = ("Par", "is", "."), *, model: str = "sim", finish: str = "stop", usage: bool = True
) -> tuple[Step, ...]:
    """A complete streamed chat answer, exactly as vLLM sends it."""
    return stream(frames.ChatStream(model=model).events(tokens, finish=finish, usage=usage))


def completion_stream(tokens: Sequence[str] = (" Par", "is", "."), *, model: str = "sim") -> tuple[Step, ...]:
    """A complete streamed text completion."""
    return stream(frames.CompletionStream(model=model).events(tokens))


def responses_stream(tokens: Sequence[str] = ("Par", "is", "."), *, model: str = "sim") -> tuple[Step, ...]:
    """A complete streamed Responses answer."""
    return stream(ResponsesStream(model=model).events(tokens))


def messages_stream(tokens: Sequence[str] = ("Par", "is", "."), *, model: str = "sim") -> tuple[Step, ...]:
    """A complete streamed Anthropic message."""
    return stream(MessagesStream(model=model).events(tokens))


def chat_json(text: str = "Paris.", *, model: str = "sim") -> tuple[Step, ...]:
    """A chat completion that was not streamed."""
    return answer(200, frames.chat_body(text, model=model))


def completion_json(text: str = " Paris.", *, model: str = "sim") -> tuple[Step, ...]:
    """A text completion that was not streamed."""
    return answer(200, frames.completion_body([text], model=model))


def responses_json(text: str = "Paris.", *, model: str = "sim") -> tuple[Step, ...]:
    """A Responses answer that was not streamed."""
    return answer(200, ResponsesStream(model=model).body(text, "completed", output=3))


def messages_json(text: str = "Paris.", *, model: str = "sim") -> tuple[Step, ...]:
    """An Anthropic message that was not streamed."""
    return answer(200, messages_body(text, model=model))


def embeddings_json(
    vectors: Sequence[Sequence[float] | str] = ((0.25, -0.5),), *, model: str = "sim"
) -> tuple[Step, ...]:
    """An embeddings answer; strings are base64 vectors."""
    return answer(200, frames.embeddings_body(vectors, model=model))


def models_json(names: Sequence[str] = ("sim",)) -> tuple[Step, ...]:
    """The model list."""
    return answer(200, frames.models_body(names, "/models/sim", 4096))


def error(status: int, message: str, type_: str, param: str | None = None, headers: Headers = ()) -> tuple[Step, ...]:
    """An error in vLLM's envelope (JSON with spaces, integer code)."""
    body = json.dumps(frames.error_object(message, type_, status, param)).encode()
    return answer(status, body, headers)


ERRORS: Mapping[str, tuple[Step, ...]] = {
    "unknown-model": error(404, "The model `nope` does not exist.", "NotFoundError", "model"),
    "bad-request": error(400, "1 validation error:\n  {'type': 'missing'}", "Bad Request", "body.messages"),
    "context-length": error(
        400,
        "This model's maximum context length is 1024 tokens. However, your request has 2000 input tokens.",
        "BadRequestError",
        "input_tokens",
    ),
    "unauthorized": answer(401, {"error": "Unauthorized"}),
    "not-found": answer(404, {"detail": "Not Found"}),
    "method-not-allowed": answer(405, {"detail": "Method Not Allowed"}, (("allow", "POST"),)),
    "rate-limited": error(429, "slow down", "rate_limit_error", None, (("retry-after", "7"),)),
    "engine-dead": error(500, frames.ENGINE_DEAD, "InternalServerError"),
    "draining": error(500, frames.DRAINING, "InternalServerError"),
    "bad-gateway-html": answer(502, b"<html>502</html>", content=(("content-type", "text/html"),)),
    "busy": error(503, frames.BUSY, "Service Unavailable"),
    "scaling": answer(503, {"error": "The model is currently scaling. Please try again later."}),
    "empty-500": answer(500, b"", content=()),
}
"""Every error body a worker was seen to send, in its own shape, by a short name."""


def in_band_error(before: Sequence[bytes] = (), event: bytes | None = None) -> tuple[Step, ...]:
    """A 200 stream that turns into an error after `before`, ending properly with DONE as vLLM does."""
    return stream([*before, event if event is not None else frames.error_event(), frames.DONE])


def truncated(events: Sequence[bytes], end: Step) -> tuple[Step, ...]:
    """A 200 stream cut after these events: `Reset()`, `Fin()` (framing broken), or `Stall()`."""
    return stream(events, end=end)


def clean_truncation(events: Sequence[bytes]) -> tuple[Step, ...]:
    """A 200 stream whose framing ends properly although the answer does not."""
    return stream(events)


def never_answers() -> tuple[Step, ...]:
    """Accepts the request and says nothing."""
    return (Stall(),)


def closes_at_once() -> tuple[Step, ...]:
    """Closes without a byte: on a kept-alive connection this is the keep-alive race."""
    return (Fin(),)


def resets_at_once() -> tuple[Step, ...]:
    """Resets without a byte."""
    return (Reset(),)


NAMED: Mapping[str, tuple[Step, ...]] = {
    "chat-stream": chat_stream(),
    "completion-stream": completion_stream(),
    "responses-stream": responses_stream(),
    "messages-stream": messages_stream(),
    "chat-json": chat_json(),
    "completion-json": completion_json(),
    "responses-json": responses_json(),
    "messages-json": messages_json(),
    "embeddings-json": embeddings_json(),
    "models-json": models_json(),
    "in-band-error": in_band_error(),
    "reset-mid-stream": truncated(frames.ChatStream().events()[:3], Reset()),
    "cut-mid-stream": truncated(frames.ChatStream().events()[:3], Fin()),
    "clean-truncation": clean_truncation(frames.ChatStream().events()[:3]),
    "never-answers": never_answers(),
    "closes-at-once": closes_at_once(),
    "resets-at-once": resets_at_once(),
    **{f"error-{name}": script for name, script in ERRORS.items()},
}
"""The scripts the command line offers."""
