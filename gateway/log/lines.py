"""Whole lines into a file that may be slow, full or without a reader, from a program that must not wait for it."""

from __future__ import annotations

import os
import queue
import select
import stat
import threading
from collections.abc import Callable
from typing import BinaryIO

MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Lines that wait for a slow reader; some ten thousand requests' worth. Further ones are dropped."""
GATHER_S = 0.1
"""Lines of so long are written together: each time interrupts a busy event loop, for some 0.1 ms."""
PIECE_BYTES = 4096
"""PIPE_BUF: what one process writes into a shared pipe at once is not torn apart by what another one writes."""
FILE_PIECE_BYTES = 64 * 1024
"""The same for a regular file, where a write of any size is one; each costs a change of threads."""
LAST_LINES_S = 1.0
"""For what waits at the end to be written."""


class LineQueue:
    """
    Lines on their way into a file. `put` never blocks and never raises.

    The thread is a daemon: one that is stuck in a write must not keep the process from ending. Whatever is locked here
    may be asked for again by the thread that has it: the interpreter's garbage collector may run at any point, and what
    it finds (a task whose exception nobody fetched) is logged there and then.

    Args:
        write: Writes all of its bytes, however long it takes; raises OSError or ValueError when it cannot.
        gap: The line that stands for so many that were dropped.
        piece_bytes: Most that is given to `write` at once, but for a longer line.
    """

    def __init__(
        self, write: Callable[[bytes], object], gap: Callable[[int], bytes], piece_bytes: int = PIECE_BYTES
    ) -> None:
        self._write = write
        self._gap = gap
        self._piece_bytes = piece_bytes
        self._lock = threading.RLock()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._overflowed = 0
        self._untold = 0
        self._gap_due = False
        self._failed = 0
        self._awake = False
        self._waking: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines lost so far: there was no room for them, or they could not be written."""
        return self._overflowed + self._failed

    def put(self, line: bytes) -> None:
        """Queue a line, or drop it."""
        with self._lock:
            if self._bytes + len(line) > MAX_WAITING_BYTES or self._closed.is_set():
                self._overflowed += 1
                self._untold += 1
                self._gap_due = True
            else:
                self._lines.append(line)
                self._bytes += len(line)
        self._wake()

    def close(self, timeout_s: float = LAST_LINES_S) -> None:
        """Write what waits, but no longer than `timeout_s`; later lines are dropped. Idempotent."""
        self._closed.set()
        self._wake()
        self._thread.join(timeout_s)

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._waking.put(None)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._waking.get()
            # While there are lines nobody has to wake this thread, which costs whoever does more than the line.
            while not self._closed.wait(GATHER_S) and self._has_work():
                self._drain()
            self._awake = False
            if self._has_work():  # which came while this thread was thought awake
                self._wake()
        self._drain()

    def _has_work(self) -> bool:
        return bool(self._lines) or self._gap_due

    def _drain(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            untold, self._untold = self._untold, 0
            self._gap_due = False
        for piece, count in _pieces(lines, self._piece_bytes):
            if not self._written(piece):
                self._failed += count
                with self._lock:
                    self._untold += count
            with self._lock:
                self._bytes = max(0, self._bytes - len(piece))
        if untold and not self._written(self._gap(untold)):
            with self._lock:
                self._untold += untold

    def _written(self, piece: bytes) -> bool:
        try:
            self._write(piece)
        except (OSError, ValueError):  # ValueError: the file was closed
            return False
        return True


def _pieces(lines: list[bytes], most: int) -> list[tuple[bytes, int]]:
    """Whole lines, as many as fit into one write, and how many they are."""
    pieces: list[tuple[bytes, int]] = []
    some: list[bytes] = []
    size = 0
    for line in lines:
        if some and size + len(line) > most:
            pieces.append((b"".join(some), len(some)))
            some, size = [], 0
        some.append(line)
        size += len(line)
    if some:
        pieces.append((b"".join(some), len(some)))
    return pieces


def piece_bytes_for(file: BinaryIO) -> int:
    """How much may be written at once, so that several processes with the same file do not tear each other's lines."""
    try:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):  # a file in memory has no descriptor
        regular = False
    return FILE_PIECE_BYTES if regular else PIECE_BYTES


def writer_to(file: BinaryIO) -> Callable[[bytes], object]:
    """
    Blocking writes into an open file. Past its buffer where it has a descriptor: a thread that is stuck in a buffered
    file holds a lock which the interpreter wants at its end.
    """
    try:
        descriptor = file.fileno()
    except (OSError, ValueError):  # a file in memory has none
        return _Flushed(file)
    return _Raw(descriptor, file)


class _Flushed:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __call__(self, piece: bytes) -> None:
        self._file.write(piece)
        self._file.flush()


class _Raw:
    """Keeps the file, so that its descriptor stays open."""

    def __init__(self, descriptor: int, file: BinaryIO) -> None:
        self._descriptor = descriptor
        self._file = file

    def __call__(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                # Somebody who shares the terminal has made it non-blocking.
                select.select([], [self._descriptor], [], 1.0)
