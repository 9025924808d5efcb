"""litellm as a client of an OpenAI-compatible endpoint."""

from __future__ import annotations

from typing import Any

import litellm
from openai import OpenAIError
from operations import API_KEY, MODEL, TIMEOUT_S, TOOLS, ask, partly, partly_async, run

litellm.suppress_debug_info = True
litellm.telemetry = False
MADE_UP = ("created",)
"""litellm fills in the time of the call in some places."""


def where(base_url: str, model: str = MODEL, retries: int = 0) -> dict[str, Any]:
    return {
        "model": f"openai/{model}",
        "api_base": f"{base_url}/v1",
        "api_key": API_KEY,
        "timeout": TIMEOUT_S,
        "max_retries": retries,
    }


SETTINGS: dict[str, Any] = {"temperature": 0, "max_tokens": 64}


def shown(value: Any) -> Any:
    return {name: part for name, part in value.model_dump(mode="json").items() if name not in MADE_UP}


def messages(scenario: str) -> Any:
    return ask(scenario)["messages"]


def streamed(base_url: str, scenario: str, **more: Any) -> Any:
    return partly(
        litellm.completion(**where(base_url), messages=messages(scenario), stream=True, **SETTINGS, **more), shown
    )


async def streamed_async(base_url: str) -> Any:
    stream = await litellm.acompletion(**where(base_url), messages=messages("plain"), stream=True, **SETTINGS)
    return await partly_async(stream, shown)


def whole(base_url: str, scenario: str, *, model: str = MODEL, retries: int = 0, **more: Any) -> Any:
    return shown(litellm.completion(**where(base_url, model, retries), messages=messages(scenario), **SETTINGS, **more))


def tools(base_url: str) -> Any:
    chunks = list(litellm.completion(**where(base_url), messages=messages("tools"), tools=TOOLS, stream=True))
    return shown(litellm.stream_chunk_builder(chunks))


def embeddings(base_url: str) -> Any:
    return shown(litellm.embedding(**where(base_url), input=["plain", "plain"]))


def abandoned(base_url: str) -> Any:
    stream = litellm.completion(**where(base_url), messages=messages("abandoned"), stream=True)
    taken = [shown(next(stream)), shown(next(stream))]
    stream.completion_stream.close()
    return taken


run(
    {
        "stream": lambda url: streamed(url, "plain"),
        "stream_usage": lambda url: streamed(url, "plain", stream_options={"include_usage": True}),
        "stream_async": streamed_async,
        "whole": lambda url: whole(url, "plain"),
        "tools": tools,
        "several": lambda url: whole(url, "plain", n=2),
        "embeddings": embeddings,
        "error_404": lambda url: whole(url, "plain", model="nope"),
        "error_400_context": lambda url: whole(url, "context"),
        "error_429": lambda url: whole(url, "limited"),
        "retry_429": lambda url: whole(url, "limited_once", retries=2),
        "retry_503": lambda url: whole(url, "busy_once", retries=2),
        "abandoned": abandoned,
        "in_band_error": lambda url: streamed(url, "in_band"),
        "stream_again": lambda url: streamed(url, "plain"),
        "cut": lambda url: streamed(url, "cut"),
        "unfinished": lambda url: streamed(url, "unfinished"),
    },
    (OpenAIError,),
)
