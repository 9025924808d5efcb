"""
The state directory: what one supervisor owns and leaves behind for the next one.

    supervisor.lock    held under flock for the life of the supervisor; contains its pid
    supervisor.json    where the running supervisor answers (written when it does)
    admin.token        secret that state-changing calls over TCP must present
    keys.json          digests of the API keys, written by `gateway keys`, which holds keys.lock meanwhile
    run/               Unix sockets, admin.sock (0600) and those of workers, and the workers' temporary files; a link to
                       a directory elsewhere when the path is too long
    records/           one launch record per worker
    logs/              output of the workers

Mode 0700, owned by the user who runs the gateway: everything inside may be trusted.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.durable import remove_partials, write_atomically
from gateway.errors import AlreadyRunning, ControlUnavailable, EnvironmentProblem


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a running supervisor answers: the URLs are for people, `socket` is for the command line."""

    pid: int
    socket: str
    public_url: str
    admin_url: str


@dataclass(frozen=True, slots=True)
class StateDir:
    """The paths inside one state directory. Making one touches nothing."""

    root: Path

    @property
    def lock_file(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def endpoint_file(self) -> Path:
        return self.root / "supervisor.json"

    @property
    def token_file(self) -> Path:
        return self.root / "admin.token"

    @property
    def keys_file(self) -> Path:
        return self.root / "keys.json"

    @property
    def records(self) -> Path:
        return self.root / "records"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def read_endpoint(self) -> Endpoint:
        """
        Where the running supervisor of this directory answers.

        Raises ControlUnavailable when none is running: the file alone proves nothing, a killed supervisor leaves it.
        """
        if holder_pid(self.lock_file) is None:
            raise ControlUnavailable(f"no gateway is running with state directory {self.root}", fix="gateway up")
        try:
            found = json.loads(self.endpoint_file.read_text())
            return Endpoint(**found)
        except FileNotFoundError:
            raise ControlUnavailable(
                f"the gateway with state directory {self.root} is still preparing its start",
                fix="try again in a moment",
            ) from None
        except (ValueError, TypeError) as exc:
            raise ControlUnavailable(
                f"{self.endpoint_file} is not what a supervisor writes ({exc})", fix="stop the gateway, then gateway up"
            ) from exc

    def write_endpoint(self, endpoint: Endpoint) -> None:
        """Announce where this supervisor answers, all or nothing."""
        written = {
            "pid": endpoint.pid,
            "socket": endpoint.socket,
            "public_url": endpoint.public_url,
            "admin_url": endpoint.admin_url,
        }
        write_atomically(self.endpoint_file, json.dumps(written).encode() + b"\n")

    def admin_token(self) -> str:
        """The secret of the admin API, made on first use and kept, so that scripts need to read it only once."""
        try:
            token = self.token_file.read_text().strip()
        except FileNotFoundError:
            token = ""
        if not token:
            token = secrets.token_urlsafe(32)
            write_atomically(self.token_file, token.encode() + b"\n")
        return token


def holder_pid(lock_file: Path) -> int | None:
    """The pid of the supervisor that holds the lock, 0 when it cannot be read, None when nobody holds it."""
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


@contextmanager
def held(root: Path) -> Iterator[StateDir]:
    """
    Own the state directory: made when missing, locked until the block ends. Files that a killed owner has not finished
    are gone, and so is the address at which it answered.

    The kernel drops the lock when the process dies, however it dies. Children do not inherit it: descriptors are closed
    on exec.

    Raises:
        AlreadyRunning: Another supervisor holds it; the message has its pid.
        EnvironmentProblem: The directory cannot be made or belongs to somebody else.
    """
    state = StateDir(root)
    prepare(root)
    descriptor = os.open(state.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise AlreadyRunning(
                f"another gateway (pid {pid}) already runs with state directory {root}",
                fix=f"stop it with `kill {pid}`, or give this one its own directory with GATEWAY_STATE_DIR",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        # Until we answer, nobody is to be told where a dead one did.
        state.endpoint_file.unlink(missing_ok=True)
        for folder in (state.records, state.logs):
            folder.mkdir(mode=0o700, exist_ok=True)
        for folder in (root, state.records, state.logs):
            remove_partials(folder)
        yield state
    finally:
        os.close(descriptor)


def prepare(root: Path) -> None:
    """Make the state directory, or see that it is ours. Raises EnvironmentProblem."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = root.stat()
    except OSError as exc:
        raise EnvironmentProblem(
            f"the state directory {root} cannot be made ({exc.strerror})",
            fix="set GATEWAY_STATE_DIR to a folder of yours",
        ) from exc
    if found.st_uid != os.geteuid():
        raise EnvironmentProblem(
            f"the state directory {root} belongs to user id {found.st_uid}, not to you",
            fix="set GATEWAY_STATE_DIR to a folder of yours",
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        root.chmod(0o700)
