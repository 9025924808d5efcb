"""Files that survive a crash whole."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"
"""How the names of unfinished files end; they begin with a dot and the name of the file that was to be."""


def write_atomically(path: Path, data: bytes) -> None:
    """
    Write `path` with mode 0600 so that a reader, or a crash, sees the old content or the new one, never a part.

    On return the new content is on the disk. A process that is killed meanwhile leaves one unfinished file beside
    `path`, which the next write of `path` uses; see `remove_partials` for paths that are never written again. Waits
    while another process or thread writes the same path. Raises OSError.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    descriptor = _locked(partial)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(descriptor)
        os.replace(partial, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
    finally:
        os.close(descriptor)
    # The new name is the directory's content: without this a power failure may bring the old file back.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_partials(folder: Path) -> None:
    """Remove what writers that were killed left in `folder`. Only for its owner: nobody may be writing there now."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def _locked(partial: Path) -> int:
    """The file with that name, held so that one writer at a time uses it. Its lock ends with the writer."""
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(partial)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the writer we waited for has given that file its name, or removed it
