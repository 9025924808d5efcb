"""
The admin API: what operators, Prometheus and the command line ask the supervisor.

The same application is served twice. On the Unix socket in the state directory every caller is the owner (mode 0600).
On TCP it is behind `TcpGuard`: only names of this machine in the Host header (a web page that a browser on this machine
shows could otherwise reach us by DNS rebinding), and the token for everything that changes something.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import anyio
import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import metrics
from gateway.config.settings import Settings
from gateway.control.instruments import Instruments
from gateway.control.operations import Busy, OperationReport
from gateway.control.reload import ReloadAnswer, ReloadRefused
from gateway.control.scrape import ScrapeError, Scraper
from gateway.control.status_report import StatusReport
from gateway.control.web import CHAT_PATH, History, console_routes
from gateway.errors import ConfigurationError, GatewayError
from gateway.keys import is_loopback
from gateway.metrics import StartDurations, Totals
from gateway.workers.actor import Actor, WorkerCommand
from gateway.workers.status import WorkerStatus

OPERATOR_COMMANDS = {
    "restart": WorkerCommand.RESTART,
    "drain": WorkerCommand.DRAIN,
    "stop": WorkerCommand.STOP,
    "start": WorkerCommand.START,
}


class Fleet(Protocol):
    """What the admin API needs of the supervisor."""

    @property
    def actors(self) -> Mapping[str, Actor]: ...

    @property
    def statuses(self) -> Sequence[WorkerStatus]: ...

    @property
    def totals(self) -> Totals: ...

    @property
    def start_durations(self) -> StartDurations: ...

    @property
    def instruments(self) -> Instruments: ...

    @property
    def draining(self) -> bool: ...

    @property
    def settings(self) -> Settings: ...

    def report(self) -> StatusReport:
        """Everything `gateway status` shows."""
        ...

    def command(self, name: str, command: WorkerCommand) -> None:
        """An operator's command for one worker."""
        ...

    async def reload(self, *, dry_run: bool) -> ReloadAnswer:
        """Compare with the file, and begin to apply the difference."""
        ...

    def restart(self, models: Collection[str], minimum: int | None) -> OperationReport:
        """Begin a rolling restart."""
        ...

    def replace_processes(self) -> OperationReport:
        """Begin to replace the gateway processes."""
        ...

    def return_gpu(self, index: int) -> str | None:
        """Use a GPU again that is out of use; why it was, None when it was not."""
        ...

    def progress_ages(self) -> Mapping[str, float]:
        """By worker with requests in flight: seconds since its last byte."""
        ...


class UnknownWorker(GatewayError):
    """No worker has this name."""


def admin_app(fleet: Fleet, scraper: Scraper, history: History, keys_required: Callable[[], bool]) -> FastAPI:
    """
    The application, without any check of who calls.

    Args:
        history: What the console shows.
        keys_required: Whether clients need an API key at this moment.
    """
    app = FastAPI(title="vllm-gateway admin", openapi_url=None, docs_url=None, redoc_url=None)

    @app.exception_handler(UnknownWorker)
    async def unknown_worker(_: Request, error: UnknownWorker) -> JSONResponse:
        return _error(404, "worker_not_found", str(error))

    @app.exception_handler(ScrapeError)
    async def no_metrics(_: Request, error: ScrapeError) -> JSONResponse:
        return _error(503, "worker_unavailable", str(error))

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return _error(409, "busy", str(error))

    @app.exception_handler(HTTPException)
    async def not_found(_: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, "not_found" if error.status_code == 404 else "http_error", error.detail)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The supervisor's event loop is alive."""
        return {"status": "draining" if fleet.draining else "ok"}

    @app.get("/status")
    async def status() -> Response:
        """Models, workers and gateway processes as of now."""
        return Response(fleet.report().to_json(), media_type="application/json")

    render_one_at_a_time = anyio.Lock()

    @app.get("/metrics")
    async def gateway_metrics() -> Response:
        """The metrics of all gateway processes, past and present, added up, and those of the supervisor."""
        async with render_one_at_a_time:
            with fleet.totals.reading() as reading:
                totals = await anyio.to_thread.run_sync(fleet.totals.whole, reading)
            text = await anyio.to_thread.run_sync(
                metrics.render,
                totals,
                fleet.statuses,
                fleet.start_durations,
                fleet.progress_ages(),
                fleet.instruments.values(fleet.statuses),
            )
        return Response(text, headers={"content-type": metrics.CONTENT_TYPE})

    @app.get("/workers/{name}/metrics")
    async def worker_metrics(name: str) -> Response:
        """The worker's own metrics, as it gave them at most a second ago."""
        page = await scraper.page(_actor(fleet, name).view)
        return Response(page.text, headers={"content-type": page.content_type})

    @app.get("/discovery")
    async def discovery(request: Request) -> list[dict[str, object]]:
        """Prometheus HTTP service discovery: one target for each worker's metrics, scraped through this server."""
        host = request.headers.get("host", "127.0.0.1:8001")
        return [
            {
                "targets": [host],
                "labels": {
                    "__metrics_path__": f"/workers/{status.name}/metrics",
                    # Else all workers would be one instance, this server, to whoever groups vLLM's series by instance.
                    "instance": status.name,
                    "worker": status.name,
                    "model": status.model,
                },
            }
            for status in fleet.statuses
        ]

    @app.post("/workers/{name}/{command}", status_code=202)
    async def command_worker(name: str, command: str) -> Response:
        """Queue a command for the worker; the answer is its status before the command takes effect."""
        actor = _actor(fleet, name)
        wanted = OPERATOR_COMMANDS.get(command)
        if wanted is None:
            known = ", ".join(OPERATOR_COMMANDS)
            return _error(404, "unknown_command", f"no command {command!r}; known are {known}")
        if fleet.draining:
            return _error(409, "draining", "the gateway is stopping and takes no more commands")
        if actor.spec.static is not None and command != "drain" and command != "start":
            return _error(
                409, "static_worker", f"{name} was started by somebody else, so it cannot be stopped from here"
            )
        state = str(actor.status.state)
        fleet.command(name, wanted)
        return JSONResponse({"worker": name, "command": command, "state": state}, status_code=202)

    @app.post("/gpus/{index}/return")
    async def return_gpu(index: int) -> Response:
        """Have workers started again on a GPU that is out of use; the answer tells why it was."""
        reason = fleet.return_gpu(index)
        if reason is None:
            out = ", ".join(str(each.gpu) for each in fleet.report().quarantined_gpus)
            return _error(404, "gpu_not_quarantined", f"GPU {index} is not out of use; those that are: {out or 'none'}")
        return JSONResponse({"gpu": index, "reason": reason})

    @app.post("/reload")
    async def reload(dry_run: bool = False) -> Response:
        """Read the configuration file again; the answer is the difference, applied from now on unless `dry_run`."""
        if fleet.draining:
            return _error(409, "draining", "the gateway is stopping and takes no more commands")
        try:
            answer = await fleet.reload(dry_run=dry_run)
        except ConfigurationError as exc:
            return _error(400, "configuration", str(exc))
        except ReloadRefused as exc:
            return _error(409, "not_reloadable", str(exc))
        return _json(answer, 409 if answer.refused else 202 if answer.operation is not None else 200)

    @app.post("/restart")
    async def restart(model: str = "", min_available: int | None = None) -> Response:
        """Restart the workers of one model, or of all, one after the other."""
        if fleet.draining:
            return _error(409, "draining", "the gateway is stopping and takes no more commands")
        known = fleet.settings.models
        if model and model not in known:
            return _error(404, "model_not_found", f"no model is called {model!r}; there are: {', '.join(known)}")
        return _json(fleet.restart([model] if model else list(known), min_available), 202)

    @app.post("/processes/replace")
    async def replace_processes() -> Response:
        """New gateway processes with the code that is installed now; the old ones finish their streams."""
        if fleet.draining:
            return _error(409, "draining", "the gateway is stopping and takes no more commands")
        return _json(fleet.replace_processes(), 202)

    @app.get("/operation")
    async def operation() -> Response:
        """The reload or rolling restart that runs, or the last one that ran."""
        return _json(fleet.report().operation, 200)

    app.include_router(console_routes(fleet.report, history, lambda: fleet.instruments.gpus, keys_required))
    return app


class TcpGuard:
    """
    What stands before the admin application on TCP.

    Bound to loopback, only loopback names are accepted as Host. Bound elsewhere on the operator's word, any name is:
    Prometheus in another container uses the service's name.

    Args:
        bound_host: What the port is bound to.
        token: For everything that changes something, the console's chat box aside.
        chat_open: Whether the chat box may be used without the token: where its caller needs a key besides, or may do
            without one at this address. A public endpoint on loopback would else be open to whoever reaches this port.
    """

    def __init__(
        self, app: ASGIApp, *, bound_host: str, token: str, chat_open: Callable[[], bool] = lambda: False
    ) -> None:
        self._app = app
        self._chat_open = chat_open
        self._check_host = is_loopback(bound_host)
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refusal = self._refusal(scope["method"], scope["path"], headers)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Response | None:
        if self._check_host and not is_loopback(_host_name(headers.get(b"host", b"").decode("latin-1"))):
            return _error(421, "wrong_host", "the admin API answers only to 127.0.0.1, [::1] and localhost")
        if method in ("GET", "HEAD") or (path == CHAT_PATH and self._chat_open()):
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not secrets.compare_digest(given.strip(), self._token):
            if path == CHAT_PATH:
                return _error(
                    403,
                    "key_required",
                    "the chat box is closed: the admin port is not on loopback, and requests need no API key. "
                    "`gateway keys create NAME` makes one, and then the chat box asks for it",
                )
            return _error(
                401,
                "token_required",
                "send `Authorization: Bearer TOKEN` with the content of admin.token from the state directory, "
                "or use the `gateway` command, which needs none",
            )
        return None


def _host_name(host: str) -> str:
    """`host:port` or `[v6]:port` without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _actor(fleet: Fleet, name: str) -> Actor:
    actor = fleet.actors.get(name)
    if actor is None:
        raise UnknownWorker(f"no worker is called {name!r}; there are: {', '.join(fleet.actors) or 'none'}")
    return actor


def _json(answer: msgspec.Struct, status: int) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json", status_code=status)


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": code}}, status_code=status)
