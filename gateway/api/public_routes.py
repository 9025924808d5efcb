"""
The allow-list of public routes, as pure ASGI: inference requests go from here straight to the relay.

What is not on the list falls through to FastAPI (health, readiness, and its 404), which answers with request ids added.
"""

from __future__ import annotations

import time
from typing import Any

from gateway.api.answers import answer, answer_error, family_of_path
from gateway.api.authentication import Authenticator
from gateway.errors import RequestError
from gateway.protocol import models, paths
from gateway.protocol.headers import client_request_id, request_id_headers
from gateway.protocol.request import family_of
from gateway.proxy.direct import Receive, Scope, Send
from gateway.proxy.relay import Relay
from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Outcome

_GET = frozenset({"GET", "HEAD"})


class PublicRoutes:
    """Middleware that serves the routes of `protocol.paths` itself."""

    def __init__(self, app: Any, relay: Relay, authenticator: Authenticator) -> None:
        self._app = app
        self._relay = relay
        self._authenticator = authenticator
        self._exact: dict[bytes, paths.InferenceRoute] = {}
        for endpoint in Endpoint:
            route = paths.resolve(endpoint.value.encode())
            if isinstance(route, paths.InferenceRoute) and not route.item:
                self._exact[endpoint.value.encode()] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        raw_path = scope.get("raw_path") or scope["path"].encode()
        route: paths.Route | None = self._exact.get(raw_path) or paths.resolve(raw_path)
        if route is None:
            await self._fall_through(scope, receive, send)
        elif isinstance(route, paths.InferenceRoute):
            await self._inference(route, scope, receive, send)
        else:
            await self._models(route, scope, send)

    async def _inference(self, route: paths.InferenceRoute, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        tenant: str | None = None
        try:
            if method not in route.methods:
                await self._wrong_method(route.methods | {"OPTIONS"}, scope, send)
                return
            caller = self._authenticator.authenticate(scope["headers"])
            tenant = caller.tenant
            if route.item:
                raise RequestError(
                    404,
                    "Stored objects are not kept across workers here: send the whole conversation instead.",
                    code="not_found",
                )
        except RequestError as error:
            request_id = self._request_id(scope)
            self._count(route.endpoint, request_id, error, tenant)
            await answer_error(send, family_of(route.endpoint), error, request_id, close=_waits(scope))
            return
        await self._relay.serve(route, scope, receive, send, caller)

    def _count(self, endpoint: Endpoint, request_id: str, error: RequestError, tenant: str | None) -> None:
        """A request that never becomes an exchange is in the metrics and the log as well: wrong keys must be seen."""
        record = ExchangeRecord(request_id, endpoint, family_of(endpoint), time.monotonic(), tenant=tenant)
        record.status = error.status
        record.outcome = Outcome.CLIENT_ERROR if error.status < 500 else Outcome.INTERNAL
        record.error_code = error.code or error.type
        record.duration_s = 0.0
        self._relay.recorder.started(record.model, tenant)
        self._relay.recorder.finished(record)

    async def _models(self, route: paths.ModelList | paths.ModelRetrieve, scope: Scope, send: Send) -> None:
        if scope["method"] not in _GET:
            await self._wrong_method(_GET | {"OPTIONS"}, scope, send)
            return
        family = family_of_path(scope["path"])
        request_id = self._request_id(scope)
        try:
            caller = self._authenticator.authenticate(scope["headers"])
            known = self._relay.dispatcher.models()
            if caller.models is not None:
                known = tuple(model for model in known if model.name in caller.models)
            if isinstance(route, paths.ModelList):
                body: bytes | None = models.list_models(known)
            else:
                body = models.retrieve_model(known, route.model_id)
            if body is None:
                raise RequestError(
                    404,
                    "This model does not exist. GET /v1/models lists the models.",
                    code="model_not_found",
                    param="model",
                )
        except RequestError as error:
            await answer_error(send, family, error, request_id)
            return
        await answer(send, 200, body, request_id_headers(request_id), head=scope["method"] == "HEAD")

    async def _wrong_method(self, methods: frozenset[str], scope: Scope, send: Send) -> None:
        allow = (b"allow", ", ".join(sorted(methods)).encode())
        request_id = self._request_id(scope)
        if scope["method"] == "OPTIONS":
            await answer(send, 204, b"", [allow, *request_id_headers(request_id)])
            return
        error = RequestError(405, "This method is not allowed here; see the Allow header.", code="method_not_allowed")
        await answer_error(send, family_of_path(scope["path"]), error, request_id, [allow], close=_waits(scope))

    async def _fall_through(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        ids = request_id_headers(request_id)

        async def with_ids(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *ids]
            await send(message)

        await self._app(scope, receive, with_ids)

    def _request_id(self, scope: Scope) -> str:
        return client_request_id(scope["headers"]) or self._relay.new_id()


def _waits(scope: Scope) -> bool:
    """The client waits for `100 Continue` before it sends its body."""
    return any(name == b"expect" for name, _ in scope["headers"])
