"""
Events and bodies of the Responses and Messages (Anthropic) routes as a vLLM worker sends them.

Both name their events with an `event:` line. Responses numbers every event; Messages ends with `message_stop` and a
`[DONE]` line, which clients of that route ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.servers.frames import CREATED, DONE, named_event


@dataclass(frozen=True, slots=True)
class MessagesStream:
    """Events of one streamed Anthropic message."""

    model: str = "sim"
    id: str = "msg_9e35"

    def start(self, input_tokens: int = 22) -> bytes:
        """Opens the message and its only text block."""
        message: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": input_tokens, "output_tokens": 0},
        }
        return named_event("message_start", {"type": "message_start", "message": message}) + named_event(
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        )

    def text(self, text: str) -> bytes:
        """One piece of text."""
        delta = {"type": "text_delta", "text": text}
        return named_event("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})

    def stop(self, reason: str = "end_turn", input_tokens: int = 22, output_tokens: int = 3) -> bytes:
        """Closes the block and the message."""
        usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        return (
            named_event("content_block_stop", {"type": "content_block_stop", "index": 0})
            + named_event("message_delta", {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage})
            + named_event("message_stop", {"type": "message_stop"})
            + DONE
        )

    def events(self, tokens: Sequence[str] = ("Par", "is", "."), *, prompt: int = 22) -> list[bytes]:
        """A whole answer."""
        tail = self.stop(input_tokens=prompt, output_tokens=len(tokens))
        return [self.start(prompt), *map(self.text, tokens), tail]


def messages_error(message: str, type_: str = "api_error") -> bytes:
    """An in-band error in Anthropic's form."""
    return named_event("error", {"type": "error", "error": {"type": type_, "message": message}})


def messages_body(
    text: str, *, model: str = "sim", id: str = "msg_9e35", reason: str = "end_turn", prompt: int = 22, output: int = 3
) -> dict[str, Any]:
    """An Anthropic message that was not streamed."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "model": model,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": prompt, "output_tokens": output},
    }


@dataclass(frozen=True, slots=True)
class ResponsesStream:
    """Events of one streamed Responses answer; the caller keeps the running sequence number."""

    model: str = "sim"
    id: str = "resp_9e35"
    created: int = CREATED

    def body(self, text: str | None, status: str, prompt: int = 22, output: int = 0) -> dict[str, Any]:
        """The response object; `text` None means that nothing has been said yet."""
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + output,
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": [] if text is None else [self._item(text, "completed")],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": None if text is None else usage,
        }

    def _item(self, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [self._part(text)]
        return {"id": "msg_0", "type": "message", "role": "assistant", "status": status, "content": content}

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def opening(self, number: int) -> list[bytes]:
        """response.created, in_progress, output_item.added, content_part.added, numbered from `number`."""
        response = self.body(None, "in_progress")
        place = {"output_index": 0}
        part = {"item_id": "msg_0", "content_index": 0, "part": self._part("")}
        steps: Iterable[tuple[str, dict[str, Any]]] = (
            ("response.created", {"response": response}),
            ("response.in_progress", {"response": response}),
            ("response.output_item.added", {**place, "item": self._item(None, "in_progress")}),
            ("response.content_part.added", {**place, **part}),
        )
        return list(_numbered(steps, number))

    def delta(self, text: str, number: int) -> bytes:
        """One piece of text."""
        payload = {"output_index": 0, "item_id": "msg_0", "content_index": 0, "delta": text, "logprobs": []}
        return next(_numbered([("response.output_text.delta", payload)], number))

    def closing(
        self, text: str, number: int, status: str = "completed", prompt: int = 22, output: int = 3
    ) -> list[bytes]:
        """The done events and the terminal one."""
        place = {"output_index": 0, "item_id": "msg_0", "content_index": 0}
        steps: Iterable[tuple[str, dict[str, Any]]] = (
            ("response.output_text.done", {**place, "text": text, "logprobs": []}),
            ("response.content_part.done", {**place, "part": self._part(text)}),
            ("response.output_item.done", {"output_index": 0, "item": self._item(text, "completed")}),
            (f"response.{status}", {"response": self.body(text, status, prompt, output)}),
        )
        return list(_numbered(steps, number))

    def events(self, tokens: Sequence[str] = ("Par", "is", "."), *, prompt: int = 22) -> list[bytes]:
        """A whole answer."""
        opening = self.opening(0)
        deltas = [self.delta(t, len(opening) + i) for i, t in enumerate(tokens)]
        start = len(opening) + len(deltas)
        return [*opening, *deltas, *self.closing("".join(tokens), start, prompt=prompt, output=len(tokens))]


def _numbered(steps: Iterable[tuple[str, dict[str, Any]]], first: int) -> Iterator[bytes]:
    for number, (name, payload) in enumerate(steps, first):
        yield named_event(name, {"type": name, "sequence_number": number, **payload})
