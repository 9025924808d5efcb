"""
Shared memory that dead processes have left in /dev/shm.

The names are random, so nothing but a living process tells whose a segment is: it is asked while it lives, and what it
named is removed once nobody has it mapped. A worker that was killed cannot do that itself, and a full /dev/shm makes
the next one crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")
PROC = Path("/proc")
PREFIXES = ("psm_", "sem.mp-", "vllm_offload_", "vllm_dist_")
"""Of Python's shared memory and semaphores, vLLM's offloaded KV cache, and its ranks' exchange on a CPU."""


def segments_of(pids: Iterable[int], *, shared: Path = SHARED, proc: Path = PROC) -> frozenset[str]:
    """
    Names of the segments that these processes have mapped or open; processes that end meanwhile have none.

    Told by inode: a semaphore is created under another name and then linked to its own, and the kernel goes on showing
    the first.
    """
    names = _by_inode(shared)
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            for line in (proc / str(pid) / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
                if f" {shared}/" in line:
                    found.add(names.get(int(line.split(maxsplit=5)[4]), ""))
        with suppress(OSError):
            for descriptor in (proc / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor).startswith(f"{shared}/"):
                        found.add(names.get(descriptor.stat().st_ino, ""))
    return frozenset(found - {""})


def _by_inode(shared: Path) -> dict[int, str]:
    """The segments of known kinds."""
    found: dict[int, str] = {}
    with suppress(OSError), os.scandir(shared) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIXES):
                found[entry.inode()] = entry.name
    return found


def remove_segments(names: Iterable[str], *, shared: Path = SHARED, proc: Path = PROC) -> tuple[str, ...]:
    """Remove those of the segments that are ours and that no living process uses; their names."""
    there = [name for name in names if _is_ours(shared, name)]
    if not there:
        return ()
    used = segments_of(psutil.pids(), shared=shared, proc=proc)
    removed = []
    for name in sorted(set(there) - used):
        with suppress(FileNotFoundError):
            (shared / name).unlink()
            removed.append(name)
    return tuple(removed)


def _is_ours(shared: Path, name: str) -> bool:
    try:
        return name.startswith(PREFIXES) and "/" not in name and (shared / name).lstat().st_uid == os.geteuid()
    except (OSError, ValueError):  # there is none of that name, or it is no name: noted before a power failure
        return False
