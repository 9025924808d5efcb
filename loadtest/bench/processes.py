"""Starting what is measured, and waiting until it answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from loadtest.bench import targets

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Never through a proxy: everything measured is on this machine."""


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A relay or a scripted worker in a session of its own, ended with all its children."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                try:
                    process.wait(30)
                    break
                except subprocess.TimeoutExpired:
                    continue


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which nobody listens now, so that two measurements on one machine do not meet."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_answering(port: int, name: str, *, within_s: float, log: Path | None = None) -> None:
    """Until a request is answered; ends the program with the last words of `log` otherwise."""
    body = json.dumps({"model": targets.MODEL, "messages": [{"role": "user", "content": "x"}]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), DIRECT.open(request, timeout=2) as answer:
            if answer.status == 200:
                return
        pause.wait(0.3)
    end = log.read_text(errors="replace")[-2000:] if log else ""
    sys.exit(f"{name} did not answer on port {port} within {within_s:.0f} s\n{end}")
