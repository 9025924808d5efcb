"""
A worker's processes: started in a session of their own, ended as a whole.

vLLM is a tree (API server, engine core, workers) whose lower parts outlive a killed API server and keep its GPU. They
stay in the session that the API server leads, so the session is the unit that is killed, swept and confirmed dead.
The leader is reaped only when nobody else is left: until then its pid, and with it the session's id, is ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from pathlib import Path

import anyio
import psutil

from gateway.clock import Clock
from gateway.errors import WorkerStartError
from gateway.types import WorkerAddress
from gateway.workers.command_line import CommandLine
from gateway.workers.platform import exit_status, wait_for_exit
from gateway.workers.shared_memory import remove_segments, segments_of

_SWEEP_INTERVAL_S = 0.05


class SessionProcess:
    """A child that leads its own session (`WorkerProcess`)."""

    def __init__(self, child: subprocess.Popen[bytes], clock: Clock) -> None:
        self._child = child
        self._clock = clock
        self._segments: frozenset[str] = frozenset()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return exit_status(self._child)

    async def wait(self) -> int:
        while (status := exit_status(self._child)) is None:
            await wait_for_exit(self._child.pid)
        return status

    def terminate(self) -> None:
        if self._child.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill_group(self) -> None:
        if self._child.returncode is None:  # else swept and reaped, and the id may be somebody else's
            self._remember_segments()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def sweep(self, deadline_s: float) -> tuple[int, ...]:
        until = self._clock.monotonic() + deadline_s
        while self._child.returncode is None:
            left = session_members(self.pid)
            if not left:
                self._child.wait()
                remove_segments(self._segments)
                return ()
            for pid in left:
                # One by one and not by group: a member may have made a group of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._clock.monotonic() >= until:
                return left
            await anyio.sleep(_SWEEP_INTERVAL_S)
        return ()

    def listens_on(self, address: WorkerAddress) -> bool | None:
        ours = session_listens(self.pid, address)
        if ours:
            self._remember_segments()  # it serves, so it has what it will have; later it may be too dead to ask
        return ours

    def _remember_segments(self) -> None:
        self._segments |= segments_of(session_members(self.pid))


class SessionLauncher:
    """Starts processes in sessions of their own (`Launcher`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def launch(self, command: CommandLine, log_file: Path) -> SessionProcess:
        try:
            log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise WorkerStartError(
                f"the worker's log {log_file} cannot be written: {exc.strerror}", fix=f"make {log_file.parent} writable"
            ) from exc
        try:
            # Not in a thread: a cancelled wait for the thread would leave a process that nobody owns.
            child = subprocess.Popen(  # noqa: ASYNC220
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(command.environ),
                start_new_session=True,
                close_fds=True,
            )
        except OSError as exc:
            gone = exc.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)
            raise WorkerStartError(
                f"the engine's command {command.argv[0]} cannot be run: {exc.strerror}",
                fix="set engines.NAME.python to the interpreter of an environment with vLLM, or unset it",
                permanent=gone,
            ) from exc
        finally:
            os.close(log)
        return SessionProcess(child, self._clock)


def session_members(session: int) -> tuple[int, ...]:
    """
    Pids of the live processes of a session; zombies do not count.

    Orphans that were given to us (when this process is a subreaper, or pid 1) are reaped on the way; the leader never,
    its exit status belongs to whoever started it.
    """
    members = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) != session:
                continue
            zombie = psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if not zombie:
            members.append(pid)
        elif pid != session:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return tuple(members)


def session_listens(session: int, address: WorkerAddress) -> bool | None:
    """
    Does a process of the session hold the listening socket of `address`? None when the system does not tell.

    A worker whose port was snatched between our look and its bind must not be mistaken for whoever answers there.
    """
    for pid in session_members(session):
        try:
            connections = psutil.Process(pid).net_connections(kind="unix" if address.uds else "tcp")
        except psutil.AccessDenied:
            return None
        except psutil.NoSuchProcess:
            continue
        for connection in connections:
            if address.uds:
                # psutil gives a path here, and an (ip, port) for TCP; its types know only the latter.
                if str(connection.laddr) == address.uds:
                    return True
            elif connection.status == psutil.CONN_LISTEN and connection.laddr.port == address.port:
                return True
    return False
