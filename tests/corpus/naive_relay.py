"""
A test double: the relay one writes on the first afternoon, with httpx and StreamingResponse.

The corpus suite runs against it to prove that its tests bite. It forwards everything it is given, retries nothing, and
trusts both sides to behave.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

_FRAMING = ("content-length", "transfer-encoding")


def create_app(workers: Sequence[str], client: httpx.AsyncClient) -> FastAPI:
    """A catch-all in front of `workers` (base URLs), which take turns."""
    app = FastAPI()
    turns = itertools.cycle(workers)

    @app.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "OPTIONS"])
    async def relay(path: str, request: Request) -> Response:
        body = await request.body()
        stream = bool(body) and json.loads(body).get("stream", False)
        headers = [(name, value) for name, value in request.headers.items() if name not in ("host", *_FRAMING)]
        upstream = client.build_request(request.method, f"{next(turns)}/{path}", headers=headers, content=body)
        try:
            answer = await client.send(upstream, stream=stream)
        except httpx.HTTPError as error:
            return JSONResponse({"error": str(error)}, status_code=500)
        if not stream:
            return Response(answer.content, answer.status_code, dict(answer.headers))
        return StreamingResponse(answer.aiter_bytes(), answer.status_code, dict(answer.headers))

    return app
