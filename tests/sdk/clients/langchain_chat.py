"""langchain-openai: ChatOpenAI and OpenAIEmbeddings."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import OpenAIError
from operations import API_KEY, MODEL, TIMEOUT_S, TOOLS, dumped, partly, partly_async, run


def llm(base_url: str, *, model: str = MODEL, retries: int = 0, **more: Any) -> ChatOpenAI:
    settings = {"max_retries": retries, "timeout": TIMEOUT_S, "temperature": 0, "max_tokens": 64, **more}
    return ChatOpenAI(base_url=f"{base_url}/v1", api_key=API_KEY, model=model, **settings)


def shown(message: Any) -> dict[str, Any]:
    """A message or chunk without the run id that LangChain makes up."""
    return {name: value for name, value in dumped(message).items() if name != "id" or not str(value).startswith("lc_")}


def summed(base_url: str) -> Any:
    total: Any = None
    for chunk in llm(base_url).bind_tools(TOOLS).stream("tools"):
        total = chunk if total is None else total + chunk
    return shown(total) | {"calls": total.tool_calls}


async def streamed_async(base_url: str) -> Any:
    return await partly_async(llm(base_url).astream("plain"), shown)


def several(base_url: str) -> Any:
    (generations,) = llm(base_url, n=2).generate([[HumanMessage("plain")]]).generations
    return [generation.text for generation in generations]


def embeddings(base_url: str) -> Any:
    client = OpenAIEmbeddings(
        base_url=f"{base_url}/v1", api_key=API_KEY, model=MODEL, check_embedding_ctx_length=False, max_retries=0
    )
    return client.embed_documents(["plain", "plain"])


def abandoned(base_url: str) -> Any:
    stream = llm(base_url).stream("abandoned")
    taken = [shown(next(stream)), shown(next(stream))]
    stream.close()
    return taken


run(
    {
        "stream": lambda url: partly(llm(url).stream("plain"), shown),
        "stream_usage": lambda url: partly(llm(url, stream_usage=True).stream("plain"), shown),
        "stream_async": streamed_async,
        "whole": lambda url: shown(llm(url).invoke("plain")),
        "tools": summed,
        "several": several,
        "responses": lambda url: shown(llm(url, use_responses_api=True).invoke("plain")),
        "embeddings": embeddings,
        "error_404": lambda url: shown(llm(url, model="nope").invoke("plain")),
        "error_400_context": lambda url: shown(llm(url).invoke("context")),
        "error_429": lambda url: shown(llm(url).invoke("limited")),
        "retry_429": lambda url: shown(llm(url, retries=2).invoke("limited_once")),
        "retry_503": lambda url: shown(llm(url, retries=2).invoke("busy_once")),
        "abandoned": abandoned,
        "in_band_error": lambda url: partly(llm(url).stream("in_band"), shown),
        "responses_stream": lambda url: partly(llm(url, use_responses_api=True).stream("plain"), shown),
        "cut": lambda url: partly(llm(url).stream("cut"), shown),
        "unfinished": lambda url: partly(llm(url).stream("unfinished"), shown),
    },
    (OpenAIError,),
)
