"""anthropic-python, synchronous: the Messages API."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic, AnthropicError
from operations import API_KEY, MODEL, TIMEOUT_S, dumped, partly, run
from operations import ask as ask_chat


def sdk(base_url: str, retries: int = 0) -> Anthropic:
    return Anthropic(base_url=base_url, api_key=API_KEY, max_retries=retries, timeout=TIMEOUT_S)


def ask(scenario: str) -> dict[str, Any]:
    """This SDK has no parameter for the temperature any more."""
    asked = ask_chat(scenario)
    return asked | {"extra_body": {"temperature": asked.pop("temperature")}}


def streamed(base_url: str, scenario: str) -> dict[str, Any]:
    with sdk(base_url) as client, client.messages.create(**ask(scenario), stream=True) as events:
        return partly(events, dumped)


def accumulated(base_url: str) -> Any:
    with sdk(base_url) as client, client.messages.stream(**ask("plain")) as stream:
        return {"text": "".join(stream.text_stream), "final": dumped(stream.get_final_message())}


def whole(base_url: str, scenario: str, *, retries: int = 0, **more: Any) -> Any:
    with sdk(base_url, retries) as client:
        return dumped(client.messages.create(**(ask(scenario) | more)))


def count_tokens(base_url: str) -> Any:
    with sdk(base_url) as client:
        return dumped(client.messages.count_tokens(model=MODEL, messages=ask("plain")["messages"]))


def abandoned(base_url: str) -> Any:
    with sdk(base_url) as client:
        stream = client.messages.create(**ask("abandoned"), stream=True)
        taken = [dumped(next(stream)), dumped(next(stream))]
        stream.close()
        return taken


def request_id(base_url: str) -> Any:
    with sdk(base_url) as client:
        return bool(client.messages.create(**ask("plain"))._request_id)


run(
    {
        "stream": lambda url: streamed(url, "plain"),
        "accumulated": accumulated,
        "whole": lambda url: whole(url, "plain"),
        "count_tokens": count_tokens,
        "error_404": lambda url: whole(url, "plain", model="nope"),
        "error_400_context": lambda url: whole(url, "context"),
        "error_429": lambda url: whole(url, "limited"),
        "retry_429": lambda url: whole(url, "limited_once", retries=2),
        "retry_503": lambda url: whole(url, "busy_once", retries=2),
        "abandoned": abandoned,
        "in_band_error": lambda url: streamed(url, "in_band"),
        "request_id": request_id,
        "cut": lambda url: streamed(url, "cut"),
        "unfinished": lambda url: streamed(url, "unfinished"),
    },
    (AnthropicError,),
)
