"""
A worker's output file: set aside at the next launch, and kept from filling the disk meanwhile.

    NAME.log                the run that is, NAME.log.1 what was cut off from it
    NAME.previous.log       the run before, NAME.previous.log.1 likewise

The worker holds the file open for appending and cannot be told to open another one. So the file is copied and then cut
to nothing; what the worker writes between the end of the copy and the cut, microseconds, is lost.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gateway.durable import PartialFile
from gateway.errors import WorkerStartError

MAX_BYTES = 64 * 1024 * 1024
"""Of one file: a run keeps between one and two times as much of its latest output."""
_CHUNK_BYTES = 1024 * 1024


class LogFile:
    """The output file of one worker."""

    def __init__(self, folder: Path, worker: str, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = folder / f"{worker}.log"
        self._older = folder / f"{worker}.log.1"
        self._previous = folder / f"{worker}.previous.log"
        self._previous_older = folder / f"{worker}.previous.log.1"
        self._max_bytes = max_bytes

    def set_aside(self) -> None:
        """
        Keep the output of the launch before, so that a crash can be read after the restart.

        Raises:
            WorkerStartError: the folder cannot be written.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.exists():
                self._previous_older.unlink(missing_ok=True)
                self.path.replace(self._previous)
            # Also when there is no log: whoever did the line above may have been killed before this one.
            with suppress(FileNotFoundError):
                self._older.replace(self._previous_older)
        except OSError as exc:
            raise WorkerStartError(
                f"the worker's log {self.path} cannot be made: {exc.strerror}", fix=f"make {self.path.parent} writable"
            ) from exc

    def is_full(self) -> bool:
        """Is it time to cut?"""
        try:
            return self.path.stat().st_size > self._max_bytes
        except OSError:
            return False

    def cut(self) -> None:
        """
        Move the content to NAME.log.1, replacing what was there. Blocks for the time of a copy.

        Raises OSError; then the content is where it was. A process that is killed meanwhile leaves it there, too: in
        place under its new name before it is taken from the old one, at worst in both.
        """
        with self.path.open("r+b") as source, PartialFile(self._older) as older:
            while chunk := source.read(_CHUNK_BYTES):
                older.file.write(chunk)
            older.put_in_place()
            while chunk := source.read(_CHUNK_BYTES):  # what came meanwhile
                older.file.write(chunk)
                older.file.flush()  # here, so that nothing stands between the last look and the cut
            os.ftruncate(source.fileno(), 0)
