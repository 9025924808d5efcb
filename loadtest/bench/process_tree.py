"""CPU time and resident memory of a process with all its descendants, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def descendants(roots: Iterable[int]) -> set[int]:
    """`roots` and every process below them that is alive now."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = set(roots)
    queue = list(found)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def cpu_seconds(roots: Iterable[int]) -> float:
    """User plus system time spent so far by the tree. A process that ended takes its time out of the sum."""
    ticks = 0
    for pid in descendants(roots):
        if fields := _stat(pid):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(roots: Iterable[int]) -> int:
    """Resident memory of the tree; shared pages count once for every process that maps them."""
    total = 0
    for pid in descendants(roots):
        try:
            total += int((_PROC / str(pid) / "statm").read_text().split()[1])
        except FileNotFoundError:
            continue  # ended between listing and reading
    return total * os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from `state` on, None when the process has gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
