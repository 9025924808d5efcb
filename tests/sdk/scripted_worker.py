"""
The worker of the SDK matrix: answers by the scenario that the request names in its only text, the same every time.

One state may be shared by several servers (the workers behind one gateway), so that "the first attempt fails" means the
same direct and through a gateway.
"""

from __future__ import annotations

import base64
import struct
from collections import Counter
from typing import Any
from urllib.parse import unquote

from loadtest.servers import frames, scripts
from loadtest.servers.message_frames import MessagesStream, ResponsesStream, messages_body, messages_error
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Fin, Script, Stall

MODELS = ("sim", "org/sim")
TOKENS = ("Par", "is", " naïve", " \u2028", "🜁", ".")
TEXT = "".join(TOKENS)
VECTOR = (0.25, -0.5, 3.0)
TOOLS = (("get_weather", '{"city": "Paris"}'), ("get_time", '{"zone": "CET"}'))


class ScriptedWorker:
    """`script` is what a FaultServer plays; `abandoned` are the requests whose client was to leave."""

    def __init__(self) -> None:
        self._attempts: Counter[str] = Counter()
        self.abandoned: list[RecordedRequest] = []

    def script(self, request: RecordedRequest) -> Script:
        """The answer to one request."""
        if request.method == "GET":
            return self._models(unquote(request.path))
        body = request.json()
        scenario = scenario_of(body)
        self._attempts[scenario] += 1
        first = self._attempts[scenario] == 1
        if body["model"] not in MODELS:
            message = f"The model `{body['model']}` does not exist."
            return scripts.error(404, message, "NotFoundError", "model")
        match scenario:
            case "context":
                return scripts.ERRORS["context-length"]
            case "limited":
                return scripts.ERRORS["rate-limited"]
            case "limited_once" if first:
                return scripts.error(429, "slow down", "rate_limit_error", None, (("retry-after", "1"),))
            case "busy_once" | "busy_once_alone" if first:
                return scripts.ERRORS["busy"]
            case "abandoned":
                self.abandoned.append(request)
        match request.path:
            case "/v1/chat/completions":
                return self._chat(body, scenario)
            case "/v1/completions":
                return scripts.stream(frames.CompletionStream(model=body["model"]).events(TOKENS, usage=False))
            case "/v1/embeddings":
                return self._embeddings(body)
            case "/v1/responses":
                return self._responses(body, scenario)
            case "/v1/messages":
                return self._messages(body, scenario)
            case "/v1/messages/count_tokens":
                return scripts.answer(200, {"input_tokens": 22})
        return scripts.ERRORS["not-found"]

    @staticmethod
    def _models(path: str) -> Script:
        wanted = path.removeprefix("/v1/models").removeprefix("/")
        if not wanted:
            return scripts.models_json(MODELS)
        listed = frames.models_body(MODELS, "/models/sim", 4096)["data"]
        found = [model for model in listed if model["id"] == wanted]
        if not found:
            return scripts.error(404, f"The model `{wanted}` does not exist.", "NotFoundError", "model")
        return scripts.answer(200, found[0])

    @staticmethod
    def _embeddings(body: dict[str, Any]) -> Script:
        vector: Any = VECTOR
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{len(VECTOR)}f", *VECTOR)).decode()
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        return scripts.embeddings_json([vector] * len(inputs), model=body["model"])

    def _chat(self, body: dict[str, Any], scenario: str) -> Script:
        chat = frames.ChatStream(model=body["model"])
        count = body.get("n") or 1
        if not body.get("stream"):
            if scenario == "tools":
                return scripts.answer(200, _tool_body(body["model"]))
            return scripts.answer(200, frames.chat_body(TEXT, model=body["model"], choices=count))
        wants_usage = (body.get("stream_options") or {}).get("include_usage")
        usage = [chat.usage(22, len(TOKENS), cached=16)] if wants_usage else []
        events = [chat.role(), *map(chat.content, TOKENS), chat.finish(), *usage, frames.DONE]
        match scenario:
            case "tools":
                events = [*_tool_events(chat), *usage, frames.DONE]
            case "several":
                events = [*_interleaved(chat, count), *usage, frames.DONE]
            case "reasoning":
                events[1:1] = [chat.reasoning("Let me "), chat.reasoning("think.")]
            case "byte_by_byte":
                return scripts.stream(events, cut_every=1)
        return _ended(events, scenario)

    @staticmethod
    def _responses(body: dict[str, Any], scenario: str) -> Script:
        if not body.get("stream"):
            return scripts.responses_json(TEXT, model=body["model"])
        return _ended(ResponsesStream(model=body["model"]).events(TOKENS), scenario)

    @staticmethod
    def _messages(body: dict[str, Any], scenario: str) -> Script:
        if not body.get("stream"):
            return scripts.answer(200, messages_body(TEXT, model=body["model"]))
        events = MessagesStream(model=body["model"]).events(TOKENS)
        if scenario == "in_band":
            return scripts.stream([*events[:3], messages_error("The engine died."), frames.DONE])
        return _ended(events, scenario)


def scenario_of(body: dict[str, Any]) -> str:
    """The only text of a request of any family."""
    found: Any = body.get("messages") or body.get("input") or body.get("prompt")
    while not isinstance(found, str):
        found = found[-1] if isinstance(found, list) else found.get("content", found.get("text"))
    return found


def _ended(events: list[bytes], scenario: str) -> Script:
    match scenario:
        case "abandoned":
            return scripts.stream(events[:4], end=Stall())
        case "in_band":
            return scripts.in_band_error(events[:3])
        case "cut":
            return scripts.truncated(events[:3], Fin())
        case "unfinished":
            return scripts.clean_truncation(events[:3])
    return scripts.stream(events)


def _tool_events(chat: frames.ChatStream) -> list[bytes]:
    """Two parallel calls, their arguments in pieces."""
    events = [chat.role()]
    for number, (name, arguments) in enumerate(TOOLS):
        middle = len(arguments) // 2
        events.append(chat.tool_call("", number, name))
        events += [chat.tool_call(arguments[:middle], number), chat.tool_call(arguments[middle:], number)]
    return [*events, chat.finish("tool_calls")]


def _interleaved(chat: frames.ChatStream, count: int) -> list[bytes]:
    """`count` choices whose tokens alternate."""
    events = [chat.role(index) for index in range(count)]
    events += [chat.content(token, index) for token in TOKENS for index in range(count)]
    return [*events, *(chat.finish(index=index) for index in range(count))]


def _tool_body(model: str) -> dict[str, Any]:
    body = frames.chat_body("", model=model, finish="tool_calls")
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(TOOLS)
    ]
    body["choices"][0]["message"] |= {"content": None, "tool_calls": calls}
    return body
