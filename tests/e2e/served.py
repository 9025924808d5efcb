"""A running `gateway up`, as an operator would start it, observed only through what an operator can see."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

CLOSED_PROXY = "http://127.0.0.1:9"
"""The discard port: nothing listens there, so whoever uses the proxy fails."""


def free_ports(count: int) -> list[int]:
    """
    As many TCP ports of loopback that nobody uses right now.

    Below those that systems give to outgoing connections and to servers that ask for any port: one of these would
    otherwise have taken the port before the program it is meant for has started.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
                ports.append(probe.getsockname()[1])
        return ports


def free_port() -> int:
    """One of them. Who needs two before the first is in use asks for both at once."""
    (port,) = free_ports(1)
    return port


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """
    Those that still run. One that is dead and waits for its parent, or for the init process, to take note of it holds
    nothing any more.
    """
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


STANDS_S = 2.5
"""Longer than both ages together."""


def wait_until(
    condition: Callable[[], bool], *, within_s: float, what: str, context: Callable[[], str] = lambda: ""
) -> None:
    """Poll `condition`; a generous deadline ends it with a message that says what never happened."""
    pause = threading.Event()
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"within {within_s} s never saw: {what}\n{context()}")
        pause.wait(0.1)


def standing(read: Callable[[], float]) -> float:
    """
    A count that stands still. What is shown of a worker is up to a second old, and of the gateway's own counts as well:
    a first look may not know yet of what was asked just before.
    """
    value, since_s = read(), time.monotonic()

    def stands() -> bool:
        nonlocal value, since_s
        found, now_s = read(), time.monotonic()
        if found != value:
            value, since_s = found, now_s
        return now_s - since_s > STANDS_S

    wait_until(stands, within_s=60, what="a count that stands still", context=lambda: f"it is at {value}")
    return value


class Served:
    """
    `gateway up ARGUMENTS` in a process of its own with its own state directory.

    Leaving the context interrupts it as Ctrl-C would and kills what is left, so that no test leaks a worker.
    """

    def __init__(self, arguments: list[str], state: Path, *, environ: Mapping[str, str] | None = None) -> None:
        self.port, self.admin_port = free_ports(2)
        self.state = state
        self.base = f"http://127.0.0.1:{self.port}"
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self._lines: list[str] = []
        self.environ = {**os.environ, "GATEWAY_STATE_DIR": str(state), **(environ or {})}
        self.command = [
            *(sys.executable, "-m", "gateway", "up", *arguments),
            *("--port", str(self.port), "--admin-port", str(self.admin_port)),
        ]
        # Not kept as long as the admin server keeps them (5 s): a request must not meet its connection's end.
        self.http = httpx.Client(trust_env=False, timeout=120, limits=httpx.Limits(keepalive_expiry=2))

    def __enter__(self) -> Served:
        self.process = subprocess.Popen(
            # As from a terminal: a test run in the background hands down ignored signals.
            ["env", "--default-signal=HUP,INT", *self.command],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._read_in_background()
        return self

    def _read_in_background(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = self.family()
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
                try:
                    self.process.wait(60)
                except subprocess.TimeoutExpired:
                    self.process.kill()
        finally:
            for member in alive(family):
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            self._reader.join(30)
            self.process.wait(30)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.http.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)

    @property
    def output(self) -> str:
        """Everything printed so far, both streams."""
        return "".join(self._lines)

    def family(self) -> list[psutil.Process]:
        """The supervisor and all its descendants, as they are now."""
        try:
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def wait_ready(self, *, within_s: float) -> None:
        """Until `/ready` answers 200; a premature exit fails at once with its output."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"gateway up ended with {self.process.returncode}\n{self.output}")
            try:
                return self.http.get(f"{self.base}/ready").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, within_s=within_s, what="/ready 200", context=lambda: self.output)

    def ended(self, *, within_s: float) -> int:
        """The exit code, once the process is gone and everything it printed has been read."""
        code = self.process.wait(within_s)
        self._reader.join(30)
        return code

    def status(self) -> dict[str, Any]:
        """The admin API's view."""
        answer: dict[str, Any] = self.http.get(f"{self.admin}/status").raise_for_status().json()
        return answer

    def worker_metric(self, worker: str, name: str) -> float:
        """Sum of all samples called `name` in the worker's own exposition."""
        text = self.http.get(f"{self.admin}/workers/{worker}/metrics").raise_for_status().text
        samples = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        assert samples, f"{name} is not exported by {worker}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)
