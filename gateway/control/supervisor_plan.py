"""Everything a supervisor is made of, put together by `composition` and by tests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gateway.clock import Clock
from gateway.config.settings import Settings
from gateway.control.gpu_watch import GpuWatch
from gateway.control.quarantine import Quarantines
from gateway.control.reload import ReloadSource
from gateway.control.state_dir import StateDir
from gateway.control.vitals import VitalSigns
from gateway.control.watcher import Watcher
from gateway.log import EventLog
from gateway.workers.actor import Actor, OnChange
from gateway.workers.spec import WorkerSpec

if TYPE_CHECKING:
    from gateway.control.supervisor import Supervisor


class AdminServer(Protocol):
    """Serves the admin API until cancelled."""

    async def serve(self, tcp: socket.socket, unix: socket.socket) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorPlan:
    """
    Everything a supervisor is made of.

    Args:
        state: The state directory, held by the caller.
        runtime_dir: Where the admin socket goes (`runtime_dir.runtime_directory`).
        gateway_argv: Command of a gateway process, without the descriptor options.
        sweep: Kills what workers have left in spite of everything; the pids that cannot be killed. Called at the end.
        keys_file: Where the API keys' digests are, or will be; "" for nowhere.
        asked: The configuration as read, before set-up filled in paths; None: `settings`.
        reload: Reads it again; None when there is no file.
        revision: Names what a worker is started with: equal revisions need no new process.
        on_ready: Told the launch of a worker that has become READY.
        adopted: Workers whose process an earlier supervisor started.
        vitals: Looks at the workers' own metrics; None: nobody does.
        gpus: Reads the GPUs' sensors; None: nobody does.
        quarantines: Shares the GPUs out; None where there are none.
    """

    settings: Settings
    specs: tuple[WorkerSpec, ...]
    make_actor: Callable[[WorkerSpec, OnChange], Actor]
    make_admin: Callable[[Supervisor], AdminServer]
    state: StateDir
    runtime_dir: Path
    gateway_argv: Sequence[str]
    clock: Clock
    log: EventLog
    watcher: Watcher
    sweep: Callable[[], Sequence[int]]
    keys_file: str = ""
    asked: Settings | None = None
    reload: ReloadSource | None = None
    revision: Callable[[WorkerSpec], str] = repr
    on_ready: Callable[[str], None] = lambda launch_id: None
    adopted: frozenset[str] = frozenset()
    vitals: VitalSigns | None = None
    gpus: GpuWatch | None = None
    quarantines: Quarantines | None = None
