"""The calls that only Linux has, with what other systems offer instead."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import psutil

_POLL_INTERVAL_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36


async def wait_for_exit(pid: int) -> None:
    """
    Return once the child `pid` has exited (it is not reaped here), or at the latest after a short while.

    Without pidfds (macOS, very old kernels) this is a pause, and the caller looks again.
    """
    if sys.platform == "linux":
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except OSError:
            await anyio.sleep(_POLL_INTERVAL_S)
            return
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
    else:
        await anyio.sleep(_POLL_INTERVAL_S)


def exit_status(child: subprocess.Popen[bytes]) -> int | None:
    """
    The child's exit status (negative: signal), None while it runs; where possible without reaping it.

    A leader that is not reaped keeps its pid, so the id of its session and group cannot pass to a stranger while we
    still send signals there.
    """
    if sys.platform == "linux" and child.returncode is None:
        try:
            info = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return child.poll()
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
    return child.poll()


def start_ticks(pid: int) -> int | None:
    """When a live process started, in ticks since boot; None when there is none (a zombie has ended)."""
    if sys.platform == "linux":
        try:
            # The name in parentheses may hold anything, so the fields are counted from the last parenthesis.
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else int(fields[19])
    else:
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 100)
        except psutil.NoSuchProcess:
            return None


def adopt_orphans() -> bool:
    """
    Make this process the parent of orphaned descendants, so that it can reap them; False where that is not possible.

    Without it the engine processes of a killed API server become children of pid 1, which in a container may never
    reap.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return False


def one_per_core(cpus: Sequence[int]) -> tuple[int, ...]:
    """The first of `cpus` on each physical core; all of them where the system does not tell."""
    chosen: dict[str, int] = {}
    for cpu in cpus:
        chosen.setdefault(_siblings(cpu), cpu)
    return tuple(chosen.values())


def _siblings(cpu: int) -> str:
    """The logical CPUs of the same core, as the kernel writes them; the CPU itself where it does not."""
    try:
        return (
            Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
        )
    except OSError:
        return str(cpu)
