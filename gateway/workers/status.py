"""What the supervisor says about a worker to people (status, console) and to gateway processes (snapshots)."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.types import WorkerAddress, WorkerState


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """
    One worker at one moment. `changed_at_s`, `was_ready_at_s` and `started_at_s` are CLOCK_MONOTONIC seconds.

    `phase` is what a STARTING worker does, in words; `progress` 0 to 1 where known. `last_failure` is one sentence with
    the key or command that mends it. A static worker has no pid, GPUs or log.
    """

    name: str
    model: str
    state: WorkerState
    launch_id: str
    address: WorkerAddress | None
    changed_at_s: float
    static: bool = False
    was_ready_at_s: float | None = None
    started_at_s: float | None = None
    phase: str = ""
    progress: float | None = None
    pid: int | None = None
    gpus: tuple[int, ...] = ()
    restarts: int = 0
    restart_reasons: tuple[tuple[str, int], ...] = ()
    last_failure: str = ""
    max_model_len: int | None = None
    engine_version: str = ""
    log_file: str = ""
