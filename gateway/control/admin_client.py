"""The command line's side of the admin API, over the Unix socket in the state directory."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import msgspec

from gateway.control.state_dir import StateDir
from gateway.control.status_report import StatusReport
from gateway.errors import ControlUnavailable, GatewayError

TIMEOUT_S = 10.0


class CommandRefused(GatewayError):
    """The supervisor answered, and said no."""


class AdminClient:
    """Asks the supervisor that holds a state directory. Blocking; every call opens a connection of its own."""

    def __init__(self, state: StateDir) -> None:
        self._state = state

    def status(self) -> StatusReport:
        """Raises ControlUnavailable."""
        answer = self._ask("GET", "/status")
        try:
            return StatusReport.from_json(answer.content)
        except msgspec.DecodeError as exc:
            raise ControlUnavailable(
                f"the running gateway answers in another form than this release knows ({exc})",
                fix="use the release that is running, or stop it and start this one",
            ) from exc

    def command(self, worker: str, command: str) -> str:
        """Queue a command for a worker; its state at that moment. Raises CommandRefused for no such worker."""
        answer = self._ask("POST", f"/workers/{quote(worker, safe='')}/{command}")
        return str(answer.json().get("state", ""))

    def _ask(self, method: str, path: str) -> httpx.Response:
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
        if answer.is_success:
            return answer
        try:
            message = str(answer.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = f"the gateway answered {answer.status_code} to {method} {path}"
        raise CommandRefused(message)
