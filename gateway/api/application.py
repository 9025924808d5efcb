"""
The public application: the inference routes as plain ASGI, health and readiness as FastAPI routes, one error envelope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.answers import family_of_path
from gateway.api.authentication import Anonymous, Authenticator
from gateway.api.cors import Cors
from gateway.api.inline import InlineRoutes, InlineServing
from gateway.api.public_routes import PublicRoutes
from gateway.errors import RequestError
from gateway.protocol import errors_wire
from gateway.protocol.headers import request_id_headers
from gateway.protocol.paths import inference_routes
from gateway.proxy.relay import Relay
from gateway.types import Outcome


class Readiness(Protocol):
    """Whether this process may get traffic (decision 14)."""

    @property
    def ready(self) -> bool: ...


class PublicApplication(FastAPI):
    """
    FastAPI behind our own routes: an inference request never enters FastAPI's stack of middleware, whose layers and
    wrapped `send` would cost it more than routing and accounting together.
    """

    _front: ASGIApp | None = None
    inline: InlineServing | None = None
    """For a server that can serve requests without a task."""

    def put_in_front(self, front: Callable[[ASGIApp], ASGIApp]) -> None:
        """Let `front` see every request first; what it is given is FastAPI itself."""
        self._front = front(super().__call__)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._front is None:
            await super().__call__(scope, receive, send)
        else:
            await self._front(scope, receive, send)


def create_app(
    relay: Relay,
    readiness: Readiness,
    *,
    authenticator: Authenticator | None = None,
    cors_origins: Sequence[str] = (),
    metrics: Callable[[], Awaitable[tuple[bytes, str]]] | None = None,
) -> FastAPI:
    """
    Build the application.

    Args:
        relay: Serves the inference routes.
        readiness: Behind `/ready`.
        authenticator: Who may call; None: everybody.
        cors_origins: Origins of browser clients.
        metrics: Text and content type for a public `/metrics`; None: there is none.
    """
    app = PublicApplication(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        """The event loop is alive."""
        return Response(b'{"status":"ok"}', media_type="application/json")

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        """Not draining, and every model is served or about to be."""
        if readiness.ready:
            return Response(b'{"status":"ready"}', media_type="application/json")
        return Response(b'{"status":"not ready"}', status_code=503, media_type="application/json")

    if metrics is not None:
        render = metrics

        @app.api_route("/metrics", methods=["GET", "HEAD"])
        async def exposition() -> Response:
            """The totals of all gateway processes."""
            text, content_type = await render()
            return Response(text, headers={"content-type": content_type})

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if request.method == "OPTIONS" and error.status_code == 405:
            return Response(status_code=204, headers=error.headers)
        message, code = _FRAMEWORK.get(error.status_code, ("The request was refused.", "refused"))
        return _envelope(request, RequestError(error.status_code, message, code=code), error.headers)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        return _envelope(
            request, RequestError(422, "The request has parameters of a wrong form.", code="invalid_value")
        )

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        return _envelope(request, errors_wire.failure(Outcome.INTERNAL))

    checked = authenticator or Anonymous()
    app.put_in_front(lambda inner: Cors(PublicRoutes(inner, relay, checked), cors_origins))
    app.inline = InlineRoutes(relay, checked, inference_routes())
    return app


_FRAMEWORK = {
    404: ("There is no such route. The API is at /v1, for example POST /v1/chat/completions.", "route_not_found"),
    405: ("This method is not allowed here; see the Allow header.", "method_not_allowed"),
}


def _envelope(request: Request, error: RequestError, headers: object = None) -> Response:
    known = request.scope.get("state", {}).get("request_id")
    request_id = known or ""
    family = family_of_path(request.url.path)
    response = Response(errors_wire.error_body(family, error, request_id), status_code=error.status)
    response.raw_headers.extend(errors_wire.error_headers(error))
    if isinstance(headers, dict):
        response.headers.update(headers)
    if error.status == 500 and known:
        # Sent by the outermost middleware, behind the one that adds the ids elsewhere.
        response.raw_headers.extend(request_id_headers(request_id))
    return response
