"""
What the cache holds and who needs it: engines and models of earlier releases stay there until somebody removes them.

The files beside a folder that say who builds and who uses it (`.lock`, `.users`) are never removed: another process may
be about to lock them, and would then hold a file that nobody else sees.
"""

from __future__ import annotations

import enum
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import EnvironmentProblem
from gateway.setup.builds import BUILDS
from gateway.setup.completion import MARKER, discard, exclusive, finished
from gateway.setup.engine import engine_folder
from gateway.setup.model import default_model_folder
from gateway.setup.users import KINDS, has_users, key_of, processes_in, without_users

BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system's own blocks are."""


class Use(enum.StrEnum):
    """What an entry is there for."""

    THIS_RELEASE = "this release"
    A_GATEWAY = "a running gateway"
    PROCESSES = "running processes"
    BEING_BUILT = "being built"
    NONE = "nothing"
    UNFINISHED = "unfinished"
    SHARED = "every release"
    FOREIGN = "unknown"

    @property
    def removable(self) -> bool:
        """Nobody would miss it."""
        return self in (Use.NONE, Use.UNFINISHED)


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One folder or file of the cache, and what it takes of the disk with its log. `pids`: of Use.PROCESSES and, as far as
    it is known, Use.BEING_BUILT.
    """

    path: Path
    size_bytes: int
    use: Use
    pids: tuple[int, ...] = ()


def look(cache: Path) -> tuple[Entry, ...]:
    """
    Everything in the cache. Changes nothing.

    Raises EnvironmentProblem when it cannot be read.
    """
    try:
        folders = tuple(_folders(cache))
        current = _current(cache)
        used = processes_in(folders)
        entries = [_entry(folder, current, used.get(folder, ())) for folder in folders]
        if cache.is_dir():
            rest = sorted(path for path in cache.iterdir() if path.name not in KINDS)
            entries += [Entry(path, disk_bytes(path), Use.SHARED) for path in rest]
    except OSError as problem:
        raise _unwritable(cache, problem) from problem
    return tuple(entries)


def remove(entry: Entry) -> bool:
    """
    Remove an entry that `look` found removable; False when somebody has begun to build or use it since.

    Holds the lock of those who build. Interrupted at any moment, it leaves nothing that looks finished.

    Raises EnvironmentProblem.
    """
    assert entry.use.removable, entry
    folder, key = entry.path, key_of(entry.path)
    try:
        with exclusive(key.with_name(key.name + ".lock"), _refuse), without_users(folder) as free:
            # Somebody may have finished it since it was shown.
            if not free or processes_in((folder,)) or _worth(folder, _current(folder.parent.parent)) is not entry.use:
                return False
            discard(folder)
            if not key.exists():
                key.with_name(key.name + ".log").unlink(missing_ok=True)
    except _BeingBuilt:
        return False
    except OSError as problem:
        raise _unwritable(folder, problem) from problem
    return True


def disk_bytes(path: Path) -> int:
    """What the path takes of the disk; a file that has several names in it counts once, links are not followed."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for each in (path, *_below(path)):
        try:
            found = each.lstat()
        except FileNotFoundError:
            continue  # removed meanwhile
        if (found.st_dev, found.st_ino) not in seen:
            seen.add((found.st_dev, found.st_ino))
            total += found.st_blocks * BLOCK_BYTES
    return total


class _BeingBuilt(Exception):
    """Somebody holds the lock."""


def _refuse(holder: str) -> None:
    raise _BeingBuilt(holder)


def _folders(cache: Path) -> Iterator[Path]:
    for kind in KINDS:
        if (cache / kind).is_dir():
            yield from sorted(path for path in (cache / kind).iterdir() if path.is_dir())


def _entry(folder: Path, current: set[Path], pids: tuple[int, ...]) -> Entry:
    key = key_of(folder)
    size = disk_bytes(folder)
    if folder == key or not key.exists():
        size += disk_bytes(key.with_name(key.name + ".log"))
    lock = key.with_name(key.name + ".lock")
    if folder.is_symlink() or (not lock.exists() and not (folder / MARKER).exists()):
        return Entry(folder, size, Use.FOREIGN)
    try:
        builder = _holder(lock)
        used = has_users(folder)
    except PermissionError:  # another user's: who builds or uses it cannot be seen, and it is not ours to remove
        return Entry(folder, size, Use.FOREIGN)
    if builder is not None:
        return Entry(folder, size, Use.BEING_BUILT, builder)
    if used:
        return Entry(folder, size, Use.A_GATEWAY, pids)
    if pids:
        return Entry(folder, size, Use.PROCESSES, pids)
    return Entry(folder, size, _worth(folder, current))


def _worth(folder: Path, current: set[Path]) -> Use:
    """Of a folder that nobody uses just now."""
    if finished(folder, folder.name) is None:
        return Use.UNFINISHED
    return Use.THIS_RELEASE if folder in current else Use.NONE


def _current(cache: Path) -> set[Path]:
    return {*(engine_folder(build, cache) for build in BUILDS), default_model_folder(cache)}


def _holder(lock: Path) -> tuple[int, ...] | None:
    """The process that holds a build's lock, () when it is not known; None when nobody does."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).decode("ascii", "replace").strip()
        return (int(text),) if text.isdigit() else ()
    finally:
        os.close(descriptor)
    return None


def _below(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        return
    for folder, folders, names in os.walk(path):
        yield from (Path(folder, name) for name in (*folders, *names))


def _unwritable(path: Path, problem: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(f"{path} cannot be read or changed: {problem}", fix=f"ls -ld {path}")
