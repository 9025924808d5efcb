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

# sockaddr_un.sun_path is 108 bytes on Linux and 104 on the BSDs and macOS, the closing zero included.
MAX_SOCKET_PATH_BYTES = 103
# Room for a worker's socket: its name and a launch.
LONGEST_SOCKET_NAME_BYTES = 48
_RUNTIME_PREFIX = "gateway-run-"
_SHORT_TEMPORARY = Path("/tmp")
"""For sockets, where even TMPDIR is too deep."""


@contextmanager
def runtime_directory(state: StateDir, *, keep: Collection[Path] = ()) -> Iterator[Path]:
    """
    A private directory for Unix sockets, free of a killed supervisor's leftovers except the sockets in `keep`, which
    belong to workers that go on.

    A socket path is limited to about a hundred bytes. Where the state directory lies too deep, `run` is a link to a
    directory of its own (mode 0700) under the system's temporary one. Both are removed at the end.

    Raises:
        EnvironmentProblem: The directory cannot be made.
    """
    state.endpoint_file.unlink(missing_ok=True)
    run = state.root / "run"
    try:
        folder = _elsewhere(run, frozenset(keep)) if _too_deep(run) else _beside(run, frozenset(keep))
    except OSError as exc:
        raise EnvironmentProblem(
            f"no folder for sockets can be made: {exc}",
            fix="make room there, or set TMPDIR to a folder of yours with a short path",
        ) from exc
    try:
        yield folder
    finally:
        state.endpoint_file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        if run.is_symlink():
            run.unlink()


def _too_deep(folder: Path) -> bool:
    return len(os.fsencode(folder)) + LONGEST_SOCKET_NAME_BYTES > MAX_SOCKET_PATH_BYTES


def _beside(run: Path, keep: frozenset[Path]) -> Path:
    """`run` itself, without what is not to be kept."""
    if run.is_symlink():  # the state directory lay deeper once
        if (old := _ours(run)) is not None:
            _empty(old, keep)
            if any(old.iterdir()):
                return old
            old.rmdir()
        run.unlink()
    run.mkdir(mode=0o700, exist_ok=True)
    _empty(run, keep)
    return run


def _elsewhere(run: Path, keep: frozenset[Path]) -> Path:
    """What `run` is a link to, without what is not to be kept, or a new directory that it is a link to from now on."""
    if (old := _ours(run)) is not None:
        _empty(old, keep)
        return old
    parent = Path(tempfile.gettempdir())
    if _too_deep(parent / _random_name()):
        parent = _SHORT_TEMPORARY
    while True:
        # The link comes first: whenever its owner is killed, the next one finds what there is.
        if run.is_dir() and not run.is_symlink():
            shutil.rmtree(run)
        run.unlink(missing_ok=True)
        folder = parent / _random_name()
        run.symlink_to(folder)
        with suppress(FileExistsError):  # somebody else's: another name
            folder.mkdir(mode=0o700)
            return folder


def _random_name() -> str:
    return f"{_RUNTIME_PREFIX}{secrets.token_hex(4)}"


def _ours(run: Path) -> Path | None:
    """
    The directory that `run` is a link to, when it is one that we made; None otherwise.

    Everybody may make directories beside it, and a cleaner of temporary files may have removed ours.
    """
    if not run.is_symlink():
        return None
    folder = run.readlink()
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return None
    made = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and folder.name.startswith(_RUNTIME_PREFIX)
    return folder if made else None


def _empty(folder: Path, keep: frozenset[Path]) -> None:
    """Remove what is in the folder, but not `keep`."""
    for path in folder.iterdir():
        if path in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
