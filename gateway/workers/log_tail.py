"""A worker's output file, followed while the worker writes it."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path

KEPT_LINES = 400
_CHUNK_BYTES = 256 * 1024
_LONGEST_LINE_BYTES = 64 * 1024
_ENDS = re.compile(rb"[\r\n]+")


class LogTail:
    """
    Reads what was added since the last look, and keeps the last lines.

    Progress bars end their lines with a carriage return, so that is a line end here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._partial = b""
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)

    def read(self) -> list[str]:
        """New complete lines, empty ones left out; nothing while the file does not exist."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0  # it was cut
                file.seek(self._offset)
                data = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *complete, self._partial = _ENDS.split(self._partial + data)
        if len(self._partial) > _LONGEST_LINE_BYTES:
            complete.append(self._partial)
            self._partial = b""
        lines = [line.decode("utf-8", "replace") for line in complete if line.strip()]
        self.last_lines.extend(lines)
        return lines

    def skip_to_recent(self) -> None:
        """Begin with the last few hundred lines of what is there already."""
        try:
            self._offset = max(0, self._path.stat().st_size - _CHUNK_BYTES)
        except FileNotFoundError:
            self._offset = 0

    def catch_up(self) -> None:
        """Read all complete lines that there are."""
        while self.read():
            pass

    def drain(self) -> None:
        """Read to the end, once the writers are gone; an unfinished last line counts."""
        self.catch_up()
        if self._partial.strip():
            self.last_lines.append(self._partial.decode("utf-8", "replace"))
            self._partial = b""
