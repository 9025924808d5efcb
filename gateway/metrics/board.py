"""
The memory a gateway process counts in and the supervisor reads: a memfd passed by descriptor, one writer.

Each cell is 8 bytes at an 8-byte boundary, and an indexed store into the array is one aligned 8-byte write, which the
supported machines never tear: a reader in another process sees the old value or the new one. Two cells may be read
between their two updates (a bucket and its sum), so one scrape may be a few observations apart within itself; the next
is not.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from typing import TypeAlias

from gateway.errors import ControlUnavailable
from gateway.metrics.layout import Layout

Cells: TypeAlias = "memoryview[float]"
"""A view of float64 cells, as `memoryview.cast("d")` gives it."""


class Board:
    """
    One gateway process's cells. Made by the supervisor (`create`), opened by the process (`attach`).

    The supervisor keeps its mapping when the process dies, so that nothing counted is lost.
    """

    def __init__(self, layout: Layout, fd: int) -> None:
        self.layout = layout
        self.fd = fd
        self._memory = mmap.mmap(fd, layout.size_bytes)
        self.cells: Cells = memoryview(self._memory).cast("d")

    @classmethod
    def create(cls, layout: Layout) -> Board:
        """Fresh zeroed cells. `fd` is not inheritable: pass it on by `pass_fds`."""
        fd = anonymous_file("gateway-metrics")
        os.ftruncate(fd, layout.size_bytes)
        board = cls(layout, fd)
        board.cells[0] = layout.fingerprint
        return board

    @classmethod
    def attach(cls, layout: Layout, fd: int) -> Board:
        """
        Open inherited cells; the descriptor is ours from now on and closed on failure.

        Raises:
            ControlUnavailable: The supervisor laid the cells out differently (it runs another release).
        """
        found = os.fstat(fd).st_size
        if found != layout.size_bytes:
            os.close(fd)
            raise ControlUnavailable(
                f"expected a metrics board of {layout.size_bytes} bytes from the supervisor, found {found}",
                fix="stop the supervisor and start it again, so that both run the same release",
            )
        board = cls(layout, fd)
        if board.cells[0] != layout.fingerprint:
            board.close()
            raise ControlUnavailable(
                "the supervisor's metrics board has another layout than this gateway process expects",
                fix="stop the supervisor and start it again, so that both run the same release",
            )
        return board

    def close(self) -> None:
        """Unmap and close the descriptor. Idempotent."""
        if self.fd < 0:
            return
        self.cells.release()
        self._memory.close()
        os.close(self.fd)
        self.fd = -1


def anonymous_file(name: str) -> int:
    """
    Memory with a descriptor and no place in a file system; where there is no memfd, an unlinked temporary file.

    Args:
        name: For /proc/PID/maps.
    """
    if sys.platform == "linux":
        return os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
