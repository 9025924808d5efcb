"""A worker that an earlier supervisor launched, and that goes on serving under this one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio

from gateway.clock import Clock
from gateway.errors import WorkerStartError
from gateway.types import WorkerAddress
from gateway.workers.platform import start_ticks
from gateway.workers.process import session_listens, session_members
from gateway.workers.services import EXIT_UNKNOWN, WorkerProcess
from gateway.workers.shared_memory import remove_segments, segments_of

_POLL_S = 0.1
_SWEEP_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """
    What `control` found and checked against the launch record; the worker's own task asks the worker the rest.

    `was_ready`: it was READY before, so it must answer soon and is not warmed up again; otherwise its start goes on
    where it is. `started_at_s` is CLOCK_MONOTONIC seconds, None when it is not known. `scratch_dir` is the launch's own
    TMPDIR, removed with it. The specification's `api_key` must be the one that the process was started with.
    """

    launch_id: str
    address: WorkerAddress
    process: WorkerProcess
    gpus: tuple[int, ...] = ()
    was_ready: bool = True
    started_at_s: float | None = None
    scratch_dir: Path | None = None


class AdoptedProcess:
    """
    The session of a worker that is not our child (`WorkerProcess`).

    Its exit is seen through a pidfd; its exit status is not ours to know and is told as EXIT_UNKNOWN. The start ticks
    guard every signal: a pid that was given to somebody else is not touched.

    Args:
        pid: Of the API server, which leads its session.
        ticks: When it started, in clock ticks since boot (`platform.start_ticks`).

    Raises:
        WorkerStartError: it is gone, or the pid is somebody else's.
    """

    def __init__(self, pid: int, ticks: int, clock: Clock) -> None:
        self._pid = pid
        self._ticks = ticks
        self._clock = clock
        self._descriptor: int | None = None
        self._segments = segments_of(session_members(pid))
        self._waiting = 0
        self._ended = False
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._descriptor = os.pidfd_open(pid)
        if start_ticks(pid) != ticks:
            self.close()
            raise WorkerStartError(f"process {pid} is not the worker that was recorded, or is gone")

    def close(self) -> None:
        """Give the pidfd back; safe to call again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        return None if start_ticks(self._pid) == self._ticks else EXIT_UNKNOWN

    async def wait(self) -> int:
        self._waiting += 1
        try:
            while self.returncode is None:
                if self._descriptor is None:
                    await anyio.sleep(_POLL_S)
                else:
                    # A copy for every waiter: only one task may wait for a descriptor.
                    copy = os.dup(self._descriptor)
                    try:
                        await anyio.wait_readable(copy)
                    finally:
                        os.close(copy)
        finally:
            self._waiting -= 1
            if self._ended and not self._waiting:
                self.close()
        return EXIT_UNKNOWN

    def terminate(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def kill_group(self) -> None:
        if members := self._members():
            self._segments |= segments_of(members)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    async def sweep(self, deadline_s: float) -> tuple[int, ...]:
        until_s = self._clock.monotonic() + deadline_s
        while left := self._members():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._clock.monotonic() >= until_s:
                return left
            await anyio.sleep(_SWEEP_INTERVAL_S)
        remove_segments(self._segments)
        self._ended = True
        if not self._waiting:  # an event loop must not lose a descriptor that it watches
            self.close()
        return ()

    def listens_on(self, address: WorkerAddress) -> bool | None:
        return session_listens(self._pid, address)

    def _members(self) -> tuple[int, ...]:
        """
        Live processes of the session. A pid is not given out again while it names a session, so a live leader with
        other start ticks proves that ours has ended.
        """
        ticks = start_ticks(self._pid)
        return session_members(self._pid) if ticks is None or ticks == self._ticks else ()
