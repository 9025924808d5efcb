"""The service unit is what systemd takes without a word, and the service manager is told what it waits for."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from gateway.control.notify import Several, SystemdWatcher
from gateway.control.watcher import Addresses, Silence
from gateway.types import WorkerState
from gateway.workers.status import WorkerStatus

UNIT = Path(__file__).parents[2] / "deploy/systemd/vllm-gateway.service"


def unit() -> dict[str, list[str]]:
    """Directives of the unit by name."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_systemd_accepts_the_unit_without_a_word(tmp_path: Path) -> None:
    """With the command's path put to a program that exists, as the installer does."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    text = UNIT.read_text().replace("/opt/vllm-gateway/.venv/bin/gateway", sys.executable)
    text = text.replace("file:///opt/vllm-gateway/docs/systemd.md", "man:systemd.service(5)")
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60)

    assert (0, "") == (done.returncode, done.stderr)


def test_the_unit_leaves_workers_alone_when_the_supervisor_crashes() -> None:
    found = unit()

    assert ["process"] == found["KillMode"]
    assert ["notify"] == found["Type"]
    assert found["ExecStopPost"][0].endswith("gateway sweep --after-stop")
    assert found["ExecReload"][0].endswith("gateway reload")


class Manager:
    """The service manager's socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def told(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


def status(name: str, state: WorkerState) -> WorkerStatus:
    return WorkerStatus(name=name, model="m", state=state, launch_id="", address=None, changed_at_s=0.0)


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_hears_of_readiness_and_of_the_stop(tmp_path: Path, abstract: bool) -> None:
    """Equal status lines are sent once; READY comes only when everything serves."""
    address = f"@{tmp_path.name}-notify" if abstract else str(tmp_path / "notify")
    manager = Manager(address)
    watcher = SystemdWatcher.from_environ({"NOTIFY_SOCKET": address})
    assert watcher is not None
    told = Several([Silence(), watcher])
    told.listening(Addresses(public="http://127.0.0.1:1", admin="http://127.0.0.1:2"))
    told.changed([status("m-0", WorkerState.READY), status("m-1", WorkerState.BACKOFF)])
    told.changed([status("m-0", WorkerState.READY), status("m-1", WorkerState.BACKOFF)])
    told.serving()
    told.stopping("SIGTERM")
    told.stopped(1.0, ())
    heard = manager.told()
    manager.close()

    assert [
        "STATUS=starting workers",
        "STATUS=1 of 2 workers ready, down: m-1",
        "READY=1",
        "STOPPING=1",
        "STATUS=stopping (SIGTERM)",
    ] == heard
    told.serving()  # nobody listens any more: no error


@pytest.mark.anyio
async def test_signs_of_life_come_at_half_of_the_interval(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    manager = Manager(address)
    watcher = SystemdWatcher.from_environ({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000"})
    assert watcher is not None
    heard: list[str] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.run)
            while len(heard) < 3:
                await anyio.lowlevel.checkpoint()
                heard += manager.told()
            group.cancel_scope.cancel()
    manager.close()

    assert {"WATCHDOG=1"} == set(heard)


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_manager_nobody_is_told(environ: dict[str, str]) -> None:
    assert SystemdWatcher.from_environ(environ) is None


def test_another_process_watchdog_is_not_ours(tmp_path: Path) -> None:
    watcher = SystemdWatcher.from_environ(
        {"NOTIFY_SOCKET": str(tmp_path / "x"), "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}
    )
    assert watcher is not None
    anyio.run(watcher.run)  # returns at once
