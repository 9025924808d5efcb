"""The API server's side of the EngineCore process: start it, step with it, notice its death, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

_CHILD = Path(__file__).with_name("core_child.py")


class EngineDeadError(Exception):
    """The engine process is gone."""


class InProcessCore:
    """No process at all, for servers inside a test: never hangs, dies only when told."""

    pid = os.getpid()

    def __init__(self) -> None:
        self.died = asyncio.Event()

    async def beat(self) -> None:
        """One engine step."""
        if self.died.is_set():
            raise EngineDeadError

    def kill(self) -> None:
        """The end of the engine."""
        self.died.set()

    def close(self) -> None:
        """Nothing to release."""


class CoreProcess:
    """
    A child process that must answer before a step counts.

    SIGSTOP of the child makes requests hang while HTTP stays alive, SIGKILL is noticed within a turn of the loop: both
    as with vLLM. The child is in the same session and process group as its parent.
    """

    def __init__(self, orphan_s: float) -> None:
        self.died = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._beat: asyncio.Future[None] | None = None
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        command = [sys.executable, "-I", "-S", str(_CHILD), "VLLM::EngineCore", str(theirs.fileno()), str(orphan_s)]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        self._loop.add_reader(self._socket, self._readable)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(4096)
        except ConnectionError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket)
            self.died.set()
        if self._beat is not None and not self._beat.done():
            self._beat.set_result(None)

    async def beat(self) -> None:
        """
        One engine step: returns when the child has answered.

        Raises:
            EngineDeadError: the child is gone.
        """
        if self.died.is_set():
            raise EngineDeadError
        self._beat = self._loop.create_future()
        try:
            self._socket.send(b".")
        except OSError:
            raise EngineDeadError from None
        await self._beat
        if self.died.is_set():
            raise EngineDeadError

    def kill(self) -> None:
        """SIGKILL, as vLLM does with its engine on SIGTERM."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kills the child, reaps it and gives the socket back."""
        self.kill()
        self._process.wait()
        self._loop.remove_reader(self._socket)
        self._socket.close()
