"""The console's routes on the admin application: page, assets, data, and the chat box's way to the public endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import anyio
import httpx
import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gateway.control.status_report import StatusReport
from gateway.control.web.history import EVERY_S, Failures, History, Sample
from gateway.workers.nvml import GpuSensors

CHAT_PATH = "/console/chat"
"""The one POST without the admin token: it can do nothing that its caller may not do anyway (see `TcpGuard`)."""

_ASSETS = Path(__file__).parent / "assets"
_TYPES = {"console.html": "text/html", "console.css": "text/css", "console.js": "text/javascript"}
_HEADERS = {
    # Nothing from elsewhere, in either direction: the page works offline, and model output cannot become code.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_CHAT_LIMIT_BYTES = 1024 * 1024
_CLIENT_LEFT = 499
_CHAT_TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=10.0, pool=5.0)


class ConsoleData(msgspec.Struct, frozen=True):
    """What the page draws. `every_s`: how often a sample is taken; `keys_required`: the chat box needs an API key."""

    report: StatusReport
    every_s: float
    keys_required: bool
    samples: list[Sample]
    gpus: Sequence[GpuSensors]
    failures: list[Failures]


def console_routes(
    report: Callable[[], StatusReport],
    history: History,
    gpus: Callable[[], Sequence[GpuSensors]],
    keys_required: Callable[[], bool],
) -> APIRouter:
    """The routes; see `ConsoleData` for what they show."""
    routes = APIRouter()

    @routes.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        """Who opens the admin port in a browser wants the console."""
        return RedirectResponse("/console")

    @routes.get("/console")
    async def page() -> FileResponse:
        return _asset("console.html")

    @routes.get("/console/data")
    async def data(since: float = 0.0) -> Response:
        """Report and samples; only those taken after `since` (seconds since 1970), to keep a refresh small."""
        samples = [sample for sample in history.samples if sample.at_unix_s > since]
        found = ConsoleData(report(), EVERY_S, keys_required(), samples, gpus(), history.failures())
        return Response(msgspec.json.encode(found), media_type="application/json", headers=_HEADERS)

    @routes.get("/console/{name}")
    async def asset(name: str) -> Response:
        return _asset(name) if name in _TYPES else _error(404, f"there is no {name!r} here")

    @routes.post(CHAT_PATH)
    async def chat(request: Request) -> Response:
        """
        One chat request, passed on to the public endpoint with the key that the person typed.

        Only from our own page: another site's page can neither set this header nor be of this origin.
        """
        if request.headers.get("x-console") != "1" or not _of_this_page(request):
            return _error(403, "the chat box answers to its own page only")
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > _CHAT_LIMIT_BYTES:
                    return _error(413, f"expected at most {_CHAT_LIMIT_BYTES} bytes, found more")
        except ClientDisconnect:
            return Response(status_code=_CLIENT_LEFT)
        # What is passed on is passed on as it comes, so it must not be compressed.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if key := request.headers.get("x-api-key"):
            headers["authorization"] = f"Bearer {key}"
        return await _pass_on(request, f"{report().public_url}/v1/chat/completions", bytes(body), headers)

    return routes


def _of_this_page(request: Request) -> bool:
    """No origin, or ours; a proxy in front may have added TLS."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    return origin is None or origin in (f"http://{host}", f"https://{host}")


async def _pass_on(request: Request, url: str, body: bytes, headers: dict[str, str]) -> Response:
    """The public endpoint's answer as it comes. Who leaves before it has begun ends the request too."""
    client = httpx.AsyncClient(trust_env=False, timeout=_CHAT_TIMEOUT)
    found: Response = Response(status_code=_CLIENT_LEFT)

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            try:
                sent = client.build_request("POST", url, content=body, headers=headers)
                found = _Relayed(client, await client.send(sent, stream=True))
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                found = _error(502, f"the public endpoint does not answer: {error or type(error).__name__}")
            group.cancel_scope.cancel()
    finally:
        if not isinstance(found, _Relayed):
            with anyio.CancelScope(shield=True):
                await client.aclose()
    return found


class _Relayed(StreamingResponse):
    """An answer passed on; its connection is closed whatever ends the passing on, a client that leaves included."""

    def __init__(self, client: httpx.AsyncClient, answer: httpx.Response) -> None:
        self._client = client
        self._answer = answer
        media_type = answer.headers.get("content-type", "application/json")
        super().__init__(self._pieces(), answer.status_code, headers=_HEADERS, media_type=media_type)

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._answer.aiter_raw():
                yield piece
        except httpx.HTTPError as error:
            yield b"data: " + msgspec.json.encode({"error": {"message": f"the answer broke off: {error}"}}) + b"\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._answer.aclose()
                await self._client.aclose()


def _asset(name: str) -> FileResponse:
    return FileResponse(_ASSETS / name, media_type=_TYPES[name], headers=_HEADERS)


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": "console"}}, status_code=status)
