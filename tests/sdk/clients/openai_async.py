"""openai-python, asynchronous."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI, OpenAIError
from operations import API_KEY, MODEL, TIMEOUT_S, TOOLS, ask, dumped, partly_async, run


def sdk(base_url: str, retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{base_url}/v1", api_key=API_KEY, max_retries=retries, timeout=TIMEOUT_S)


async def streamed(base_url: str, scenario: str, **more: Any) -> dict[str, Any]:
    async with sdk(base_url) as client:
        events = await client.chat.completions.create(**ask(scenario), stream=True, **more)
        return await partly_async(events, dumped)


async def whole(base_url: str, scenario: str, *, retries: int = 0, **more: Any) -> Any:
    async with sdk(base_url, retries) as client:
        return dumped(await client.chat.completions.create(**(ask(scenario) | more)))


async def accumulated(base_url: str, scenario: str, **more: Any) -> Any:
    async with sdk(base_url) as client, client.chat.completions.stream(**ask(scenario), **more) as stream:
        return dumped(await stream.get_final_completion())


async def embeddings(base_url: str) -> Any:
    async with sdk(base_url) as client:
        return dumped(await client.embeddings.create(model=MODEL, input=["plain", "plain"]))


async def completions(base_url: str) -> Any:
    async with sdk(base_url) as client:
        events = await client.completions.create(model=MODEL, prompt="plain", temperature=0, max_tokens=64, stream=True)
        return await partly_async(events, dumped)


async def models(base_url: str) -> Any:
    async with sdk(base_url) as client:
        return [[model.id, model.object] async for model in client.models.list()]


async def model(base_url: str) -> Any:
    async with sdk(base_url) as client:
        found = await client.models.retrieve("org/sim")
        return [found.id, found.object]


async def abandoned(base_url: str) -> Any:
    async with sdk(base_url) as client:
        stream = await client.chat.completions.create(**ask("abandoned"), stream=True)
        taken = [dumped(await anext(stream)), dumped(await anext(stream))]
        await stream.close()
        return taken


async def responses(base_url: str) -> Any:
    async with (
        sdk(base_url) as client,
        client.responses.stream(model=MODEL, input="plain", temperature=0, max_output_tokens=64) as stream,
    ):
        events = [event.type async for event in stream]
        return {"events": events, "final": dumped(await stream.get_final_response())}


async def request_id(base_url: str) -> Any:
    async with sdk(base_url) as client:
        return bool((await client.chat.completions.create(**ask("plain")))._request_id)


run(
    {
        "stream": lambda url: streamed(url, "plain"),
        "stream_usage": lambda url: streamed(url, "plain", stream_options={"include_usage": True}),
        "whole": lambda url: whole(url, "plain"),
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
        "abandoned": abandoned,
        "in_band_error": lambda url: streamed(url, "in_band"),
        "responses_stream": responses,
        "cut": lambda url: streamed(url, "cut"),
        "request_id": request_id,
        "unfinished": lambda url: streamed(url, "unfinished"),
    },
    (OpenAIError,),
)
