"""
The directory for sockets and for what workers write while they run; it ends with the supervisor.

It is `run` in the state directory. Where that lies too deep for a socket's path, it is a directory elsewhere, and `run`
is a link to it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.control.state_dir import StateDir
from gateway.errors import EnvironmentProblem
from gateway.workers.scratch import LONGEST_SOCKET_BYTES

# sockaddr_un.sun_path is 108 bytes on Linux and 104 on the BSDs and macOS, the closing zero included.
MAX_SOCKET_PATH_BYTES = 103
LONGEST_PATH_BYTES = MAX_SOCKET_PATH_BYTES - LONGEST_SOCKET_BYTES
"""Of the directory itself."""
_PREFIX = "gateway-run-"
_SHORT_TEMPORARY = Path("/tmp")
"""For sockets, where even TMPDIR is too deep."""


@contextmanager
def runtime_directory(state: StateDir, *, keep: Collection[str] = ()) -> Iterator[Path]:
    """
    A private directory (mode 0700), free of a killed supervisor's leftovers except what workers that go on use in it:
    their sockets and temporary directories. The names of these, which are those of launches, are `keep`.

    Its path has at most LONGEST_PATH_BYTES, unless an earlier one is deeper and something in it is kept or cannot be
    removed. It is removed at the end. The state directory must be held.

    Raises:
        EnvironmentProblem: The directory cannot be made.
    """
    run = state.root / "run"
    try:
        folder = _place(run, keep)
    except OSError as exc:
        raise EnvironmentProblem(
            f"no directory for sockets can be made: {exc}",
            fix=f"see that {state.root} can be written, or set GATEWAY_STATE_DIR to a folder with a shorter path",
        ) from exc
    try:
        yield folder
    finally:
        state.endpoint_file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        # What could not be removed is found by the next owner.
        if run.is_symlink() and not os.path.lexists(folder):
            run.unlink()


def _place(run: Path, keep: Collection[str]) -> Path:
    """What an earlier owner has left, emptied, if something is kept in it or a new one would be alike; or a new one."""
    too_deep = len(os.fsencode(run)) > LONGEST_PATH_BYTES
    old = _ours(run)
    if old is not None:
        _empty(old, keep)
        if too_deep == run.is_symlink() or any(old.iterdir()):
            return old
        old.rmdir()
    if run.is_symlink():
        run.unlink()
    if not too_deep:
        run.mkdir(mode=0o700)
        return run
    return _elsewhere(run)


def _elsewhere(run: Path) -> Path:
    """A new directory, and `run` as a link to it. The link comes first: whoever kills us, the next owner finds both."""
    while True:
        folder = Path(tempfile.gettempdir()) / f"{_prefix(run)}{secrets.token_hex(4)}"
        if len(os.fsencode(folder)) > LONGEST_PATH_BYTES:
            folder = _SHORT_TEMPORARY / folder.name
        run.symlink_to(folder)
        with suppress(FileExistsError):  # somebody else's: another name
            folder.mkdir(mode=0o700)
            return folder
        run.unlink()


def _prefix(run: Path) -> str:
    """Of the names of directories elsewhere. A copied state directory has the link, but another number."""
    return f"{_PREFIX}{run.parent.stat().st_ino:x}-"


def _ours(run: Path) -> Path | None:
    """
    `run` if it is a directory, or the directory that it is a link to, when that is one that we made; None otherwise.

    Everybody may make directories beside it, and a cleaner of temporary files may have removed ours.
    """
    if not run.is_symlink():
        return run if run.is_dir() else None
    folder = run.readlink()
    try:
        found = folder.lstat()
    except OSError:  # the link leads nowhere
        return None
    made = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and folder.name.startswith(_prefix(run))
    return folder if made else None


def _empty(folder: Path, keep: Collection[str]) -> None:
    """Remove what is in the folder, but not `keep`."""
    for path in folder.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
