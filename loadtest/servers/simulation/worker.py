"""The simulated worker's routes: what each path answers, in which state, with vLLM's error shapes."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import struct
import time
import uuid
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from loadtest.servers import frames
from loadtest.servers.http1 import Headers
from loadtest.servers.simulation import exposition
from loadtest.servers.simulation.answers import Answer, count_tokens, render_chat
from loadtest.servers.simulation.engine import BLOCK_TOKENS, Engine, Generation
from loadtest.servers.simulation.http_server import Exchange
from loadtest.servers.simulation.options import SimulatorOptions
from loadtest.servers.simulation.prompts import (
    GenerationRequest,
    RequestError,
    parse_body,
    read_generation,
    read_token_ids,
)
from loadtest.servers.simulation.replies import FORMS, Reply, ToolReply, ToolStreamReply
from loadtest.servers.simulation.tool_calls import Arguments

_TEXT: Headers = (("content-type", "text/plain; charset=utf-8"),)
_ID_PREFIX = {
    "/v1/chat/completions": "chatcmpl-",
    "/v1/completions": "cmpl-",
    "/v1/messages": "chatcmpl-",
    "/v1/responses": "resp_",
}
EMBEDDING_SIZE = 8


class Worker:
    """
    Answers requests; its state is set by whoever runs it.

    `draining`: generation is refused with 500 while /health stays 200. `engine_dead`: /health is 503, generation 500.
    """

    def __init__(self, options: SimulatorOptions, engine: Engine, on_exit: Callable[[int], None]) -> None:
        self.draining = False
        self.engine_dead = False
        self._options, self._engine, self._on_exit = options, engine, on_exit
        self._accepted = 0
        self._started = time.time()
        self._in_flight: set[int] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._numbers = itertools.count()
        self._routes: dict[str, dict[str, Callable[[Exchange], None]]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": lambda x: x.json(200, {"version": frames.VERSION})},
            "/load": {"GET": lambda x: x.json(200, {"server_load": len(self._in_flight)})},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/v1/embeddings": {"POST": self._embeddings},
        }
        if not options.pooling:
            self._routes |= {path: {"POST": self._generate} for path in FORMS}

    @property
    def in_flight(self) -> int:
        """Generation requests without an end yet."""
        return len(self._in_flight)

    async def idle(self) -> None:
        """Waits until no generation request is in flight."""
        await self._idle.wait()

    def handle(self, exchange: Exchange) -> None:
        """Answers one request, at once or through the engine."""
        request = exchange.request
        methods = self._routes.get(request.path)
        if self._options.request_id_headers:
            exchange.extra_headers = (("x-request-id", request.headers.get("x-request-id") or uuid.uuid4().hex),)
        try:
            if methods is None:
                exchange.json(404, {"detail": "Not Found"})
            elif request.method not in methods:
                exchange.json(405, {"detail": "Method Not Allowed"}, (("allow", ", ".join(sorted(methods))),))
            elif request.path.startswith("/v1/") and not self._authorised(request.headers.get("authorization", "")):
                exchange.json(401, {"error": "Unauthorized"})
            else:
                methods[request.method](exchange)
        except RequestError as error:
            body = frames.error_object(error.message, error.type, error.status, error.param)
            exchange.reply(error.status, json.dumps(body).encode())
        handler = request.path if methods is not None else "none"
        key = (handler, request.method, f"{(exchange.status or 200) // 100}xx")
        counted = self._engine.counts.http_requests
        counted[key] = counted.get(key, 0) + 1

    def _authorised(self, header: str) -> bool:
        keys = self._options.api_keys
        scheme, _, key = header.partition(" ")
        return not keys or (scheme.lower() == "bearer" and key in keys)

    def _health(self, exchange: Exchange) -> None:
        exchange.reply(503 if self.engine_dead else 200, b"", ())

    def _metrics(self, exchange: Exchange) -> None:
        options = self._options
        text = exposition.render(
            self._engine.counts,
            options.names[0],
            self._started,
            options.kv_tokens,
            BLOCK_TOKENS,
            options.prefix_caching,
        )
        exchange.reply(200, text.encode(), (("content-type", exposition.CONTENT_TYPE),))

    def _models(self, exchange: Exchange) -> None:
        options = self._options
        body = frames.models_body(options.names, options.model, options.max_model_len, int(time.time()))
        exchange.json(200, body)

    def _body(self, exchange: Exchange) -> dict[str, Any]:
        return parse_body(exchange.request.body, exchange.request.headers.get("content-type", ""))

    def _tokenize(self, exchange: Exchange) -> None:
        tokens = read_token_ids(self._body(exchange))
        limit = self._options.max_model_len
        exchange.json(200, {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    def _count_tokens(self, exchange: Exchange) -> None:
        messages = self._body(exchange).get("messages")
        if not isinstance(messages, list):
            raise RequestError(400, "1 validation error:\n  {'type': 'missing'}", "Bad Request", "body.messages")
        exchange.json(200, {"input_tokens": render_chat(messages)[1]})

    def _embeddings(self, exchange: Exchange) -> None:
        body = self._body(exchange)
        model = body.get("model") or self._options.names[0]
        if model not in self._options.names:
            raise RequestError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
        given = body.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts:
            raise RequestError(400, "1 validation error:\n  {'type': 'missing'}", "Bad Request", "body.input")
        vectors: list[list[float] | str] = [_embedding(str(text)) for text in texts]
        if body.get("encoding_format") == "base64":
            packed = [struct.pack(f"<{EMBEDDING_SIZE}f", *_embedding(str(text))) for text in texts]
            vectors = [base64.b64encode(p).decode() for p in packed]
        prompt = sum(count_tokens(str(text)) for text in texts)
        exchange.json(200, frames.embeddings_body(vectors, model=model, prompt=prompt, created=int(time.time())))

    def _generate(self, exchange: Exchange) -> None:
        request = read_generation(exchange.request.path, self._body(exchange), self._options)
        self._accepted += 1
        self._misbehave()
        reply = self._reply(exchange, request)
        if self.engine_dead and request.stream:
            reply.begin()
            reply.fail(frames.ENGINE_DEAD)
            return
        if self.engine_dead or self.draining:
            message = frames.ENGINE_DEAD if self.engine_dead else frames.DRAINING
            raise RequestError(500, message, "InternalServerError")
        limit = self._options.max_num_queued_reqs
        if limit is not None and self.in_flight >= limit:
            self._engine.counts.rejections += 1
            raise RequestError(503, frames.BUSY, "Service Unavailable")
        self._submit(exchange, request, reply)

    def _misbehave(self) -> None:
        """The faults that were asked for, at the request they were asked for."""
        hang_after, leave = self._options.hang_after, self._options.exit_after_requests
        if hang_after is not None and self._accepted > hang_after:
            self._engine.hang()
        if leave is not None and self._accepted > leave.after:
            self._on_exit(leave.code)

    def _reply(self, exchange: Exchange, request: GenerationRequest) -> Reply:
        path = exchange.request.path
        whole, streamed = FORMS[path]
        if request.call is not None:
            whole, streamed = partial(ToolReply, call=request.call), partial(ToolStreamReply, call=request.call)
        form = streamed if request.stream else whole
        given = exchange.request.headers.get("x-request-id") or request.session_key
        return form(
            exchange=exchange,
            model=request.model,
            id=_ID_PREFIX[path] + (given or uuid.uuid4().hex),
            created=int(time.time()),
            choices=request.n,
            prompt_tokens=request.prompt_tokens,
            want_usage=request.include_usage,
            continuous=request.include_usage and request.continuous_usage,
        )

    def _ended(self, number: int) -> None:
        self._in_flight.discard(number)
        if not self._in_flight:
            self._idle.set()

    def _submit(self, exchange: Exchange, request: GenerationRequest, reply: Reply) -> None:
        number = next(self._numbers)
        self._in_flight.add(number)
        self._idle.clear()

        def sink(index: int, text: str, reason: str | None) -> None:
            reply.sink(index, text, reason)
            if reply.ended:
                self._ended(number)

        def failed() -> None:
            self._ended(number)
            reply.failed()

        generations = [
            Generation(
                index=index,
                prompt=request.prompt,
                prompt_tokens=request.prompt_tokens,
                max_tokens=request.max_tokens,
                answer=(Answer if request.call is None else Arguments)(request.prompt, index),
                sink=sink,
                failed=failed,
                ignore_eos=request.ignore_eos,
                n=request.n,
                salt=request.salt,
            )
            for index in range(request.n)
        ]

        def gone() -> None:
            self._ended(number)
            self._engine.abort(generations)

        exchange.on_disconnect = gone
        cached = self._engine.submit(generations)
        if self._options.prompt_tokens_details:
            reply.cached = cached
        reply.begin()


def _embedding(text: str) -> list[float]:
    """A unit-free vector that depends on the text alone; its values are exact in float32."""
    seed = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return [((seed >> (4 * i)) % 16 - 8) / 8 for i in range(EMBEDDING_SIZE)]
