"""`gateway logs`: the output files of workers, with or without a running gateway."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from gateway.errors import EnvironmentProblem

_POLL_S = 0.2
_CHUNK_BYTES = 64 * 1024


def log_path(folder: Path, worker: str, *, previous: bool) -> Path:
    """
    The worker's output file; `previous` is that of the run before, which is the one that crashed.

    Raises EnvironmentProblem when there is none, naming the workers that have one.
    """
    path = folder / f"{worker}{'.previous' if previous else ''}.log"
    if path.parent == folder and path.is_file():
        return path
    known = sorted(each.name.removesuffix(".log") for each in folder.glob("*.log") if ".previous." not in each.name)
    if previous and worker in known:
        raise EnvironmentProblem(
            f"{worker} was started only once, so there is no previous log", fix="leave out --previous"
        )
    raise EnvironmentProblem(
        f"no worker {worker!r} has left a log in {folder}; there are: {', '.join(known) or 'none'}",
        fix="gateway status (the names of the workers)",
    )


def tail(path: Path, lines: int) -> Iterator[bytes]:
    """The last lines of the file."""
    with path.open("rb") as file:
        yield from deque(file, maxlen=lines)


def follow(path: Path, lines: int, pause: Callable[[float], None] = time.sleep) -> Iterator[bytes]:
    """
    The last lines, then what is added, for ever. A restarted worker writes a new file under the same name; it is
    followed from its beginning, after the old one's end.
    """
    file = path.open("rb")
    try:
        yield from deque(file, maxlen=lines)
        while True:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
            if _replaced(path, file):
                rest = file.read()
                file.close()
                file = path.open("rb")
                if rest:
                    yield rest
                continue
            pause(_POLL_S)
    finally:
        file.close()


def _replaced(path: Path, file: BinaryIO) -> bool:
    """Whether the name now means another file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False  # set aside; the new one is not there yet
    opened = os.fstat(file.fileno())
    return (found.st_dev, found.st_ino) != (opened.st_dev, opened.st_ino)
