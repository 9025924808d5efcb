"""Reading a generation request: the checks vLLM makes, with its status, type and param for each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from loadtest.servers.simulation.answers import count_tokens, message_text, render_chat, token_ids
from loadtest.servers.simulation.options import SimulatorOptions
from loadtest.servers.simulation.tool_calls import ForcedCall, forced_call, tools_text


class RequestError(Exception):
    """A request that vLLM would refuse; carries the parts of its error body."""

    def __init__(self, status: int, message: str, type_: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.type, self.param = status, message, type_, param


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What the simulator reads of a request."""

    model: str
    prompt: str
    prompt_tokens: int
    max_tokens: int
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    ignore_eos: bool
    salt: str
    session_key: str | None
    call: ForcedCall | None
    """The function that the answer must call."""


def parse_body(body: bytes, content_type: str) -> dict[str, Any]:
    """
    The JSON object of a request.

    Raises:
        RequestError: 400 for another content type, bad JSON, or JSON that is no object.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RequestError(400, "Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        text = f"1 validation error:\n  {{'type': 'json_invalid', 'msg': 'JSON decode error', 'ctx': {str(error)!r}}}"
        raise RequestError(400, text, "Bad Request", "body") from error
    if not isinstance(value, dict):
        raise RequestError(400, "1 validation error:\n  {'type': 'model_attributes_type'}", "Bad Request", "body")
    return value


def read_generation(path: str, value: dict[str, Any], options: SimulatorOptions) -> GenerationRequest:
    """
    Checks and reads a generation request of any route.

    Raises:
        RequestError: 404 for a model that is not served, 400 for everything else vLLM refuses.
    """
    model = value.get("model") or options.names[0]
    if model not in options.names:
        raise RequestError(
            404, f"The model `{model}` does not exist. Valid aliases: <path>", "NotFoundError", param="model"
        )
    prompt, prompt_tokens = _prompt(path, value)
    room = options.max_model_len - prompt_tokens
    if room < 1:
        raise RequestError(
            400,
            f"This model's maximum context length is {options.max_model_len} tokens. However, your request has "
            f"{prompt_tokens} input tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )
    if _number(value, "temperature", 1.0) < 0:
        raise RequestError(400, "temperature must be non-negative.", param="temperature")
    n = int(_number(value, "n", 1))
    if n < 1:
        raise RequestError(400, "n must be at least 1.", param="n")
    stream_options = value.get("stream_options") or {}
    force = options.force_include_usage
    return GenerationRequest(
        model=model,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=_max_tokens(path, value, room, options.max_model_len),
        n=n,
        stream=bool(value.get("stream", False)),
        include_usage=force or bool(stream_options.get("include_usage")),
        continuous_usage=force or bool(stream_options.get("continuous_usage_stats")),
        ignore_eos=bool(value.get("ignore_eos", False)),
        salt=str(value.get("cache_salt") or ""),
        session_key=value.get("request_id"),
        call=forced_call(value) if path == "/v1/chat/completions" else None,
    )


def _number(value: dict[str, Any], key: str, default: float) -> float:
    found = value.get(key)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise RequestError(
            400,
            f"1 validation error:\n  {{'type': 'number_type', 'loc': ('body', '{key}')}}",
            "Bad Request",
            f"body.{key}",
        )
    return found


def _max_tokens(path: str, value: dict[str, Any], room: int, max_model_len: int) -> int:
    default = 16 if path == "/v1/completions" else room
    for key in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        if value.get(key) is not None:
            asked = int(_number(value, key, default))
            if asked < 1:
                raise RequestError(400, f"{key} must be at least 1, got {asked}.", param=key)
            if asked > max_model_len:
                text = f"max_tokens={asked} cannot be greater than max_model_len={max_model_len}."
                raise RequestError(400, text, param=key)
            return min(asked, room)
    return min(default, room)


def _prompt(path: str, value: dict[str, Any]) -> tuple[str, int]:
    if path == "/v1/completions":
        return _completion_prompt(value.get("prompt"))
    if path == "/v1/responses":
        given = value.get("input")
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
        field = "input"
    else:
        messages, field = value.get("messages"), "messages"
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        text = f"1 validation error:\n  {{'type': 'missing', 'loc': ('body', '{field}'), 'msg': 'Field required'}}"
        raise RequestError(400, text, "Bad Request", f"body.{field}")
    if not messages:
        raise RequestError(400, "messages must not be empty.", param=field)
    system = value.get("system")
    extra = [{"role": "system", "content": system}] if system else []
    text, tokens = render_chat([*extra, *messages])
    tools = tools_text(value)
    return tools + text, tokens + count_tokens(tools)


def _completion_prompt(prompt: object) -> tuple[str, int]:
    if isinstance(prompt, str):
        return prompt, count_tokens(prompt)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(t, int) for t in prompt):
            return " ".join(map(str, prompt)), len(prompt)
        if all(isinstance(t, str) for t in prompt):
            return "\n".join(prompt), sum(map(count_tokens, prompt))
    text = "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required'}"
    raise RequestError(400, text, "Bad Request", "body.prompt")


def read_token_ids(value: dict[str, Any]) -> list[int]:
    """The tokens of a /tokenize request; those that the chat template adds have the id 0."""
    if isinstance(value.get("prompt"), str):
        return token_ids(str(value["prompt"]))
    messages = value.get("messages")
    if isinstance(messages, list) and all(isinstance(m, dict) for m in messages):
        ids = [id for message in messages for id in token_ids(message_text(message))]
        return [0] * (render_chat(messages)[1] - len(ids)) + ids
    raise RequestError(400, "1 validation error:\n  {'type': 'missing'}", "Bad Request", "body.prompt")
