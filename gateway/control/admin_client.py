"""The command line's side of the admin API, over the Unix socket in the state directory."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec

from gateway.control.operations import OperationReport
from gateway.control.reload import ReloadAnswer
from gateway.control.state_dir import StateDir
from gateway.control.status_report import StatusReport
from gateway.errors import ConfigurationError, ControlUnavailable, GatewayError

TIMEOUT_S = 10.0
Report = TypeVar("Report", StatusReport, ReloadAnswer, OperationReport)


class CommandRefused(GatewayError):
    """The supervisor answered, and said no."""


class AdminClient:
    """Asks the supervisor that holds a state directory. Blocking; every call opens a connection of its own."""

    def __init__(self, state: StateDir) -> None:
        self._state = state

    def status(self) -> StatusReport:
        """Raises ControlUnavailable."""
        return _decoded(self._ask("GET", "/status"), StatusReport)

    def command(self, worker: str, command: str) -> str:
        """Queue a command for a worker; its state at that moment. Raises CommandRefused for no such worker."""
        answer = self._ask("POST", f"/workers/{quote(worker, safe='')}/{command}")
        return str(answer.json().get("state", ""))

    def reload(self, *, dry_run: bool) -> ReloadAnswer:
        """
        Compare the file with what runs; begin to apply the difference unless `dry_run`.

        Raises ConfigurationError with everything that is wrong with the file, CommandRefused for the rest.
        """
        answer = self._ask("POST", f"/reload?dry_run={'true' if dry_run else 'false'}", also=(409,))
        return _decoded(answer, ReloadAnswer)

    def restart(self, model: str | None, min_available: int | None) -> OperationReport:
        """Begin a rolling restart of one model's workers, or of all. Raises CommandRefused."""
        asked = {"model": model, "min_available": min_available}
        query = urlencode({key: value for key, value in asked.items() if value is not None})
        return _decoded(self._ask("POST", f"/restart?{query}"), OperationReport)

    def replace_processes(self) -> OperationReport:
        """Begin to replace the gateway processes. Raises CommandRefused."""
        return _decoded(self._ask("POST", "/processes/replace"), OperationReport)

    def return_gpu(self, index: int) -> str:
        """Have a GPU used again; why it was out of use. Raises CommandRefused for one that is not."""
        return str(self._ask("POST", f"/gpus/{index}/return").json().get("reason", ""))

    def operation(self) -> OperationReport:
        """The latest reload or rolling restart."""
        return _decoded(self._ask("GET", "/operation"), OperationReport)

    def _ask(self, method: str, path: str, *, also: tuple[int, ...] = ()) -> httpx.Response:
        endpoint = self._state.read_endpoint()
        try:
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=endpoint.socket), trust_env=False, timeout=TIMEOUT_S
            ) as client:
                answer = client.request(method, f"http://localhost{path}")
        except httpx.TransportError as exc:
            raise ControlUnavailable(
                f"the gateway (pid {endpoint.pid}) does not answer on {endpoint.socket}: {exc or type(exc).__name__}",
                fix=f"try again, or stop it with `kill {endpoint.pid}`",
            ) from exc
        if answer.is_success or (answer.status_code in also and b'"error"' not in answer.content[:10]):
            return answer
        try:
            error = answer.json()["error"]
            message, code = str(error["message"]), str(error.get("code", ""))
        except (ValueError, KeyError, TypeError):
            message, code = f"the gateway answered {answer.status_code} to {method} {path}", ""
        raise ConfigurationError(message) if code == "configuration" else CommandRefused(message)


def _decoded(answer: httpx.Response, kind: type[Report]) -> Report:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.DecodeError as exc:
        raise ControlUnavailable(
            f"the running gateway answers in another form than this release knows ({exc})",
            fix="use the release that is running, or stop it and start this one",
        ) from exc
