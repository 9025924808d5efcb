"""A gateway process's view of the keys file: the last good set of keys, at most about a second old."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from gateway.keys.file import KeysUnreadable, read_keys
from gateway.keys.key import ApiKey

INTERVAL_S = 1.0

_Seen = tuple[int, int, int, int]
_HIDDEN: _Seen = (0, 0, 0, 0)


class KeysWatch:
    """
    Looks at the keys file once a second; one `stat` when nothing has changed.

    A file that cannot be used, or has gone, leaves the last good set in force and is reported once: neither may let
    anybody in who was not, nor lock out who was in.

    Args:
        path: The keys file; it need not exist yet.
        on_keys: Given the whole set, at first and after every change.
        on_problem: Given one line for the log.
    """

    def __init__(
        self, path: Path, on_keys: Callable[[tuple[ApiKey, ...]], object], on_problem: Callable[[str], object]
    ) -> None:
        self._path = path
        self._on_keys = on_keys
        self._on_problem = on_problem
        self._seen: _Seen | None = None

    async def run(self) -> None:
        """Look, now and then every second, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(INTERVAL_S)

    def look(self) -> None:
        """Read the file if it is another one than at the last look."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            if self._seen is not None:
                self._seen = None
                self._on_problem(f"{self._path} has gone; the keys read last stay valid until a restart")
            return
        except OSError as exc:
            if self._seen != _HIDDEN:
                self._seen = _HIDDEN
                self._on_problem(f"{self._path} cannot be looked at ({exc.strerror})")
            return
        # The change time as well: a mere change of the mode may be what makes the file readable.
        seen = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            keys = read_keys(self._path)
        except KeysUnreadable as exc:
            self._on_problem(str(exc))
            return
        if keys is None:  # gone between the two calls: the next look sees what has become of it
            return
        self._on_keys(keys)
