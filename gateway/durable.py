"""Files that survive a crash whole."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.partial")


class PartialFile:
    """
    What is to become the file `path`, beside it under a name of its own, mode 0600, until `put_in_place`.

    Whoever is killed meanwhile leaves it there. Its writer holds it locked, so that `remove_partials` can tell what
    nobody writes any more; with every new one those in the same folder go.

    Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        remove_partials(path.parent)
        self._partial, descriptor = _locked(path)
        self.file = os.fdopen(descriptor, "wb")
        self._in_place = False

    def put_in_place(self) -> None:
        """Give it its name; what is written from now on is in `path`. Raises OSError."""
        self.file.flush()
        os.replace(self._partial, self._path)
        self._in_place = True

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._in_place:
                self._partial.unlink(missing_ok=True)
        finally:
            self.file.close()


def write_atomically(path: Path, data: bytes) -> None:
    """
    Write `path` with mode 0600 so that a reader, or a crash, sees the old content or the new one, never a part.

    On return the new content is on the disk. Raises OSError.
    """
    with PartialFile(path) as partial:
        partial.file.write(data)
        partial.file.flush()
        os.fsync(partial.file.fileno())
        partial.put_in_place()
    # The new name is the directory's content: without this a power failure may bring the old file back.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_partials(folder: Path) -> None:
    """Remove the partial files in `folder` whose writers were killed; others may be writing there. Raises OSError."""
    for name in os.listdir(folder):
        if not _PARTIAL.fullmatch(name):
            continue
        try:
            descriptor = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # gone meanwhile, or not one of ours
            continue
        try:
            # Somebody's who lives; gone meanwhile; on a disk that refuses, as it will whatever comes next.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(folder / name)
        finally:
            os.close(descriptor)


def _locked(path: Path) -> tuple[Path, int]:
    """A new partial file of `path`, locked, and its descriptor."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        try:
            # Between the two lines above and below it looked like a dead writer's: then it is gone, or about to be.
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.fchmod(descriptor, 0o600)
                if os.path.samestat(os.fstat(descriptor), os.lstat(partial)):
                    return partial, descriptor
        except BaseException:
            os.close(descriptor)
            partial.unlink(missing_ok=True)
            raise
        os.close(descriptor)
