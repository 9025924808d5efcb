"""
Who uses an engine or model folder of the cache, so that nobody removes it.

A gateway holds `FOLDER.users` shared from before it looks for the folder until it ends, whatever its workers do
meanwhile; several gateways may, of several releases, with state directories of their own. Workers that outlive a killed
gateway hold nothing: they are found among the processes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import psutil

from gateway.errors import EnvironmentProblem
from gateway.setup.progress import Report, SetupProgress

KINDS = ("engines", "models")
"""The folders of the cache that hold folders which we build."""
PARTIAL = ".partial"
"""At the end of the name of a folder that is built beside its own place."""
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def key_of(folder: Path) -> Path:
    """What lock and users' file of a folder are named after."""
    return folder.with_name(folder.name.removesuffix(PARTIAL))


class Holds:
    """
    What one gateway uses of a cache; given back at the end of the block.

    The descriptors are not inherited: a worker that goes on without its gateway keeps nothing locked.

    Args:
        report: Told when a removal has to be waited for, which may take a while for gigabytes.
    """

    def __init__(self, cache: Path, report: Report = lambda progress: None) -> None:
        self._cache = cache
        self._report = report
        self._stack = ExitStack()
        self._held: set[Path] = set()

    def __enter__(self) -> Holds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def hold(self, path: Path) -> None:
        """
        Use what `path` is or lies in, if that is a folder of the cache; waits while it is being removed.

        In a cache that we may not write (part of an image, say) nothing is held: whoever may remove something there has
        the processes to look at. Raises EnvironmentProblem when it cannot be written for another reason.
        """
        for kind in KINDS:
            root = self._cache / kind
            if not path.is_relative_to(root) or path == root:
                continue
            folder = root / path.relative_to(root).parts[0]
            if folder in self._held:
                return
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                descriptor = _opened(folder, os.O_CREAT)
                self._stack.callback(os.close, descriptor)
                self._share(descriptor, folder)
            except OSError as problem:
                if problem.errno in _READ_ONLY:
                    return
                raise EnvironmentProblem(
                    f"{folder} cannot be marked as used: {problem}", fix="export GATEWAY_CACHE_DIR=/a/writable/folder"
                ) from problem
            self._held.add(folder)

    def _share(self, descriptor: int, folder: Path) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self._report(SetupProgress("cache", "waiting", f"{folder} is being removed"))
            fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextmanager
def without_users(folder: Path) -> Iterator[bool]:
    """Whether no gateway uses the folder; if so, none begins to inside the block. Raises OSError."""
    descriptor = _opened(key_of(folder), os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def has_users(folder: Path) -> bool:
    """Whether some gateway uses the folder. Changes nothing. Raises OSError."""
    try:
        descriptor = _opened(key_of(folder))
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def processes_in(folders: Sequence[Path]) -> Mapping[Path, tuple[int, ...]]:
    """
    By folder, the processes that were started from it or with it as an argument, or have files of it in memory.

    The last is known on Linux alone, and of other users' processes only to root.
    """
    patterns = {folder: _mentions(folder) for folder in folders}
    found: dict[Path, list[int]] = {}
    for process in psutil.process_iter(["cmdline"]):
        if process.pid == os.getpid():
            continue
        text = "\n".join(process.info["cmdline"] or ()) + "\n" + _mapped(process.pid)
        for folder, pattern in patterns.items():
            if pattern.search(text):
                found.setdefault(folder, []).append(process.pid)
    return {folder: tuple(pids) for folder, pids in found.items()}


def _opened(folder: Path, more: int = 0) -> int:
    """
    Its users' file. For writing where that is possible, without which NFS gives no exclusive lock; else for reading,
    which is enough elsewhere: the file may be another user's, who looked after the cache once.
    """
    path = folder.with_name(folder.name + ".users")
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | more, 0o644)
    except OSError as problem:
        if problem.errno not in _READ_ONLY:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | more, 0o644)


def _mentions(folder: Path) -> re.Pattern[str]:
    """The folder itself or something in it; the cache may be reached through a link."""
    names = {str(folder), os.path.realpath(folder)}
    return re.compile(f"(?:{'|'.join(map(re.escape, names))})(?=[/\\s'\"]|$)")


def _mapped(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            return maps.read()
    except OSError:
        return ""  # it has ended, is another user's, or this is no Linux
