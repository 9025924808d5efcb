"""How generated tokens become an answer: one class per form, driven by the engine's sinks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loadtest.servers import frames
from loadtest.servers.http1 import EVENT_STREAM
from loadtest.servers.message_frames import MessagesStream, ResponsesStream, messages_body, messages_error
from loadtest.servers.simulation.http_server import Exchange
from loadtest.servers.simulation.tool_calls import ForcedCall


@dataclass(slots=True, eq=False)
class Reply:
    """
    What every form shares: the exchange, the numbers for usage, and the end when the last choice has finished.

    `cached` is None when the worker does not report prompt token details.
    """

    exchange: Exchange
    model: str
    id: str
    created: int
    choices: int
    prompt_tokens: int
    cached: int | None = None
    want_usage: bool = False
    continuous: bool = False
    produced: list[int] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    ended: bool = False

    def __post_init__(self) -> None:
        self.produced = [0] * self.choices
        self.texts = [[] for _ in range(self.choices)]
        self.reasons = [None] * self.choices

    def begin(self) -> None:
        """Called once before the first token; streams send their head here."""

    def sink(self, index: int, text: str, reason: str | None) -> None:
        """One token of one choice, perhaps its last."""
        if reason != "abort":
            self.produced[index] += 1
        self.texts[index].append(text)
        self.reasons[index] = reason
        self.token(index, text, reason)
        if None not in self.reasons:
            self.ended = True
            self.complete()

    def token(self, index: int, text: str, reason: str | None) -> None:
        """Sends one token, if this form streams."""

    def complete(self) -> None:
        """Sends the end."""
        raise NotImplementedError

    def failed(self) -> None:
        """The engine died."""
        if not self.ended:
            self.ended = True
            self.fail(frames.ENGINE_DEAD)

    def fail(self, message: str) -> None:
        """Sends an error in this form's way: a whole answer here, an in-band error in streams."""
        body = json.dumps(frames.error_object(message, "InternalServerError", 500)).encode()
        self.exchange.reply(500, body)

    def usage(self, completion: int) -> dict[str, Any]:
        """The usage object at this moment."""
        return frames.usage_info(self.prompt_tokens, completion, self.cached)

    @property
    def total(self) -> int:
        """Tokens of all choices."""
        return sum(self.produced)

    @property
    def first_reason(self) -> str:
        """The finish reason of the first choice."""
        return self.reasons[0] or "stop"


class StreamedReply(Reply):
    """A 200 stream of events; errors from here on are in-band."""

    def begin(self) -> None:
        """The head leaves before the first token, as with vLLM."""
        self.exchange.start(200, EVENT_STREAM)

    def fail(self, message: str) -> None:
        """An error event, DONE, and a proper end of the body."""
        self.exchange.send(frames.error_event(message) + frames.DONE)
        self.exchange.end()


@dataclass(slots=True, eq=False)
class ChatStreamReply(StreamedReply):
    """Streamed chat. The plain content event is by far the most frequent one, so its frame is built once per choice."""

    around: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def token(self, index: int, text: str, reason: str | None) -> None:
        """The role event comes with the first token of its choice."""
        if reason is None and not self.continuous and index in self.around:
            before, after = self.around[index]
            self.exchange.send(before + frames.compact(text) + after)
            return
        stream = frames.ChatStream(self.model, self.id, self.created)
        self.around[index] = stream.content_around(index)
        if len(self.texts[index]) == 1:
            self.exchange.send(stream.role(index, self.usage(0) if self.continuous else None))
        usage = self.usage(self.produced[index]) if self.continuous else None
        event = stream.content(text, index, usage) if reason is None else stream.finish(reason, text, index, usage)
        self.exchange.send(event)

    def complete(self) -> None:
        """Usage if asked for, then DONE."""
        if self.want_usage:
            stream = frames.ChatStream(self.model, self.id, self.created)
            self.exchange.send(stream.usage(self.prompt_tokens, self.total, self.cached))
        self.exchange.send(frames.DONE)
        self.exchange.end()


@dataclass(slots=True, eq=False)
class ToolStreamReply(ChatStreamReply):
    """Streamed chat that calls a function: its name in the first piece, its arguments token by token."""

    call: ForcedCall = field(kw_only=True)

    def token(self, index: int, text: str, reason: str | None) -> None:
        """As vLLM does it, the last event of a choice has the reason and nothing else."""
        stream = frames.ChatStream(self.model, self.id, self.created)
        first = len(self.texts[index]) == 1
        usage = self.usage(self.produced[index]) if self.continuous else None
        if first:
            self.exchange.send(stream.role(index, self.usage(0) if self.continuous else None))
        if text:
            self.exchange.send(stream.tool_call(text, 0, self.call.function if first else None, index, usage))
        if reason is not None:
            self.exchange.send(stream.finish(self.call.reason if reason == "stop" else reason, "", index, usage))


class CompletionStreamReply(StreamedReply):
    """Streamed text completion."""

    def token(self, index: int, text: str, reason: str | None) -> None:
        """One event per token."""
        stream = frames.CompletionStream(self.model, self.id, self.created)
        usage = self.usage(self.produced[index]) if self.continuous else None
        self.exchange.send(stream.text(text, index, reason, usage))

    def complete(self) -> None:
        """Usage if asked for, then DONE."""
        if self.want_usage:
            stream = frames.CompletionStream(self.model, self.id, self.created)
            self.exchange.send(stream.usage(self.prompt_tokens, self.total, self.cached))
        self.exchange.send(frames.DONE)
        self.exchange.end()


class MessagesStreamReply(StreamedReply):
    """Streamed Anthropic message."""

    def token(self, index: int, text: str, reason: str | None) -> None:
        """The message opens with the first token."""
        stream = MessagesStream(self.model, self.id)
        if len(self.texts[0]) == 1:
            self.exchange.send(stream.start(self.prompt_tokens))
        if text:
            self.exchange.send(stream.text(text))

    def complete(self) -> None:
        """Block end, message delta with the stop reason, message end."""
        stream = MessagesStream(self.model, self.id)
        self.exchange.send(stream.stop(anthropic_reason(self.first_reason), self.prompt_tokens, self.total))
        self.exchange.end()

    def fail(self, message: str) -> None:
        """Anthropic's own error event."""
        self.exchange.send(messages_error(message))
        self.exchange.end()


class ResponsesStreamReply(StreamedReply):
    """Streamed Responses answer."""

    def _stream(self) -> ResponsesStream:
        return ResponsesStream(self.model, self.id, self.created)

    def begin(self) -> None:
        """The opening events need no token."""
        StreamedReply.begin(self)
        for event in self._stream().opening(0):
            self.exchange.send(event)

    def token(self, index: int, text: str, reason: str | None) -> None:
        """One delta; the four opening events have numbers 0 to 3."""
        self.exchange.send(self._stream().delta(text, 3 + len(self.texts[0])))

    def complete(self) -> None:
        """The done events and the terminal one."""
        text, number = "".join(self.texts[0]), 4 + len(self.texts[0])
        status = "incomplete" if self.first_reason == "length" else "completed"
        for event in self._stream().closing(text, number, status, self.prompt_tokens, self.total):
            self.exchange.send(event)
        self.exchange.end()


class ChatReply(Reply):
    """A whole chat completion."""

    def complete(self) -> None:
        """One body with all choices."""
        self.exchange.json(200, self.body())

    def body(self) -> dict[str, Any]:
        """The answer."""
        body = frames.chat_body(
            "",
            model=self.model,
            id=self.id,
            prompt=self.prompt_tokens,
            completion=self.total,
            cached=self.cached,
            created=self.created,
            choices=self.choices,
        )
        for choice, text, reason in zip(body["choices"], self.texts, self.reasons, strict=True):
            choice["message"] = {**choice["message"], "content": "".join(text)}
            choice["finish_reason"] = reason
        return body


@dataclass(slots=True, eq=False)
class ToolReply(ChatReply):
    """A whole chat completion that calls a function."""

    call: ForcedCall = field(kw_only=True)

    def body(self) -> dict[str, Any]:
        """Calls instead of text."""
        body = ChatReply.body(self)
        for choice in body["choices"]:
            function = {"name": self.call.function, "arguments": choice["message"]["content"]}
            call = {"id": f"call_{choice['index']}", "type": "function", "function": function}
            choice["message"] = {**choice["message"], "content": None, "tool_calls": [call]}
            choice["finish_reason"] = self.call.reason if choice["finish_reason"] == "stop" else choice["finish_reason"]
        return body


class CompletionReply(Reply):
    """A whole text completion."""

    def complete(self) -> None:
        """One body with all choices."""
        body = frames.completion_body(
            ["".join(text) for text in self.texts],
            model=self.model,
            id=self.id,
            prompt=self.prompt_tokens,
            completion=self.total,
            cached=self.cached,
            created=self.created,
        )
        for choice, reason in zip(body["choices"], self.reasons, strict=True):
            choice["finish_reason"] = reason
        self.exchange.json(200, body)


class MessagesReply(Reply):
    """A whole Anthropic message."""

    def complete(self) -> None:
        """One body."""
        text, reason = "".join(self.texts[0]), anthropic_reason(self.first_reason)
        body = messages_body(
            text, model=self.model, id=self.id, reason=reason, prompt=self.prompt_tokens, output=self.total
        )
        self.exchange.json(200, body)


class ResponsesReply(Reply):
    """A whole Responses answer."""

    def complete(self) -> None:
        """One body."""
        status = "incomplete" if self.first_reason == "length" else "completed"
        stream = ResponsesStream(self.model, self.id, self.created)
        self.exchange.json(200, stream.body("".join(self.texts[0]), status, self.prompt_tokens, self.total))


def anthropic_reason(reason: str) -> str:
    """OpenAI's finish reason in Anthropic's words."""
    return {"length": "max_tokens", "tool_calls": "tool_use"}.get(reason, "end_turn")


ReplyType = Callable[..., Reply]
FORMS: dict[str, tuple[ReplyType, ReplyType]] = {
    "/v1/chat/completions": (ChatReply, ChatStreamReply),
    "/v1/completions": (CompletionReply, CompletionStreamReply),
    "/v1/messages": (MessagesReply, MessagesStreamReply),
    "/v1/responses": (ResponsesReply, ResponsesStreamReply),
}
"""By route: the form of a whole answer and of a streamed one."""
