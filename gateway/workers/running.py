"""A worker whose process runs, with everything that its task needs to talk to it."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.workers.board import StatusBoard
from gateway.workers.inbox import Inbox
from gateway.workers.log_file import LogFile
from gateway.workers.log_tail import LogTail
from gateway.workers.services import Prober, WorkerProcess, WorkerServices
from gateway.workers.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Running:
    """One launch from its process on; the parts of its life (`Starting`, `Serving`) share it."""

    spec: WorkerSpec
    services: WorkerServices
    board: StatusBoard
    inbox: Inbox
    process: WorkerProcess
    prober: Prober
    log: LogFile
    tail: LogTail
