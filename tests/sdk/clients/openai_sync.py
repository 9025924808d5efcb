"""openai-python, synchronous."""

from __future__ import annotations

from typing import Any

from openai import OpenAI, OpenAIError
from operations import API_KEY, MODEL, TIMEOUT_S, TOOLS, ask, dumped, partly, run


def sdk(base_url: str, retries: int = 0) -> OpenAI:
    return OpenAI(base_url=f"{base_url}/v1", api_key=API_KEY, max_retries=retries, timeout=TIMEOUT_S)


def streamed(base_url: str, scenario: str, **more: Any) -> dict[str, Any]:
    with sdk(base_url) as client, client.chat.completions.create(**ask(scenario), stream=True, **more) as events:
        return partly(events, dumped)


def whole(base_url: str, scenario: str, *, retries: int = 0, **more: Any) -> Any:
    with sdk(base_url, retries) as client:
        return dumped(client.chat.completions.create(**(ask(scenario) | more)))


def accumulated(base_url: str, scenario: str, **more: Any) -> Any:
    with sdk(base_url) as client, client.chat.completions.stream(**ask(scenario), **more) as stream:
        return dumped(stream.get_final_completion())


def embeddings(base_url: str) -> Any:
    with sdk(base_url) as client:
        return dumped(client.embeddings.create(model=MODEL, input=["plain", "plain"]))


def completions(base_url: str) -> Any:
    with (
        sdk(base_url) as client,
        client.completions.create(model=MODEL, prompt="plain", temperature=0, max_tokens=64, stream=True) as events,
    ):
        return partly(events, dumped)


def models(base_url: str) -> Any:
    with sdk(base_url) as client:
        return [[model.id, model.object] for model in client.models.list()]


def model(base_url: str) -> Any:
    with sdk(base_url) as client:
        found = client.models.retrieve("org/sim")
        return [found.id, found.object]


def abandoned(base_url: str) -> Any:
    with sdk(base_url) as client:
        stream = client.chat.completions.create(**ask("abandoned"), stream=True)
        taken = [dumped(next(stream)), dumped(next(stream))]
        stream.close()
        return taken


def responses(base_url: str) -> Any:
    with (
        sdk(base_url) as client,
        client.responses.stream(model=MODEL, input="plain", temperature=0, max_output_tokens=64) as stream,
    ):
        events = [event.type for event in stream]
        return {"events": events, "final": dumped(stream.get_final_response())}


def responses_whole(base_url: str) -> Any:
    with sdk(base_url) as client:
        return dumped(client.responses.create(model=MODEL, input="plain", temperature=0, max_output_tokens=64))


def responses_unfinished(base_url: str) -> Any:
    with sdk(base_url) as client, client.responses.create(model=MODEL, input="unfinished", stream=True) as events:
        return partly(events, dumped)


def request_id(base_url: str) -> Any:
    with sdk(base_url) as client:
        return bool(client.chat.completions.create(**ask("plain"))._request_id)


run(
    {
        "stream": lambda url: streamed(url, "plain"),
        "stream_usage": lambda url: streamed(url, "plain", stream_options={"include_usage": True}),
        "stream_reasoning": lambda url: streamed(url, "reasoning"),
        "stream_byte_by_byte": lambda url: streamed(url, "byte_by_byte"),
        "whole": lambda url: whole(url, "plain"),
        "whole_tools": lambda url: whole(url, "tools", tools=TOOLS),
        "tools": lambda url: accumulated(url, "tools", tools=TOOLS),
        "several": lambda url: accumulated(url, "several", n=2),
        "completions": completions,
        "embeddings": embeddings,
        "models": models,
        "model_with_slash": model,
        "error_404": lambda url: whole(url, "plain", model="nope"),
        "error_400_context": lambda url: whole(url, "context"),
        "error_429": lambda url: whole(url, "limited"),
        "retry_429": lambda url: whole(url, "limited_once", retries=2),
        "retry_503": lambda url: whole(url, "busy_once", retries=2),
        "retry_503_one_worker": lambda url: whole(url, "busy_once_alone", retries=2, model="org/sim"),
        "abandoned": abandoned,
        "in_band_error": lambda url: streamed(url, "in_band"),
        "responses_stream": responses,
        "cut": lambda url: streamed(url, "cut"),
        "responses": responses_whole,
        "unfinished": lambda url: streamed(url, "unfinished"),
        "request_id": request_id,
        "responses_unfinished": responses_unfinished,
    },
    (OpenAIError,),
)
