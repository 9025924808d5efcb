"""
Which of the folders we build are finished, and who is building.

A folder counts as built iff its marker exists, can be read and holds the key of what was asked for. The marker is the
first thing removed and the last thing written, so an interruption at any moment leaves an unfinished folder, never one
that looks finished.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

MARKER = ".complete.json"


@contextmanager
def exclusive(lock: Path, waiting: Callable[[str], None]) -> Iterator[int]:
    """
    Hold `lock` so that one process at a time builds; `waiting` is called once, with the holder's process id as far as
    it is known, when somebody else holds it.

    Yields the lock's file descriptor, to be passed on to the programs that write into the folder: if this process is
    killed while they still run, they keep the lock, and the next run cannot build into the same folder beside them.
    For the same reason the lock is given back by closing, never by unlocking.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def finished(folder: Path, key: str) -> dict[str, str] | None:
    """The details written when `folder` was finished for `key`; None when it was not, or its marker is damaged."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(marker, dict) or marker.get("key") != key or not isinstance(marker.get("details"), dict):
        return None
    return {str(name): str(value) for name, value in marker["details"].items()}


def finish(folder: Path, key: str, details: Mapping[str, str]) -> None:
    """Declare `folder` finished. Readers see the whole marker or none."""
    partial = folder / (MARKER + ".partial")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump({"key": key, "details": dict(details)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, folder / MARKER)


def discard(folder: Path) -> None:
    """Remove `folder`, its marker first. Nothing happens when there is none."""
    (folder / MARKER).unlink(missing_ok=True)
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
