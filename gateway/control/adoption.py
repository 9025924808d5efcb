"""
Which of a killed supervisor's workers may go on under this one, and under which name.

A worker is adopted iff its record matches `/proc` (boot, pid, start ticks), and what the configuration asks for now has
the same digest as what it was launched with. Whether it answers by its served name is asked by its own task, as after
any start; one that does not is brought down like a worker that failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gateway.clock import Clock
from gateway.control.records import (
    LaunchRecord,
    RecordedProcess,
    RecordFiles,
    boot_id,
    leftover,
    read_records,
)
from gateway.errors import WorkerStartError
from gateway.workers.adoption import AdoptedProcess, Adoption
from gateway.workers.command_line import fingerprint
from gateway.workers.platform import start_ticks
from gateway.workers.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Survivor:
    """A launch of a killed supervisor whose API server lives. `pids`: all processes of its session."""

    record: LaunchRecord
    files: RecordFiles
    api_key: str | None
    was_ready: bool
    pids: frozenset[int]

    @property
    def names(self) -> tuple[str, ...]:
        """What it uses in the runtime directory."""
        address = self.record.address
        paths = (address.uds if address is not None else None, self.record.scratch_dir)
        return tuple(Path(path).name for path in paths if path)


@dataclass(frozen=True, slots=True)
class Adopted:
    """
    Adoptions by worker name, and all specifications: those of adopted workers have the key their process was started
    with, and the GPUs it has.
    """

    adoptions: dict[str, Adoption]
    specs: tuple[WorkerSpec, ...]

    @property
    def launches(self) -> frozenset[str]:
        """Launch ids of the adopted."""
        return frozenset(adoption.launch_id for adoption in self.adoptions.values())


def survivors(folder: Path) -> tuple[Survivor, ...]:
    """The launches in `folder` that might be adopted. The state directory must be held."""
    found = []
    for record in read_records(folder):
        if not record.argv_hash or record.address is None or not record.pid or record.boot_id != boot_id():
            continue
        if start_ticks(record.pid) != record.start_ticks:
            continue
        files = RecordFiles(folder, record.launch_id)
        try:
            key = files.key.read_text()
        except FileNotFoundError:
            key = None
        found.append(Survivor(record, files, key, files.ready.exists(), leftover(record)))
    return tuple(sorted(found, key=lambda survivor: survivor.record.worker))


def adopt(found: Sequence[Survivor], specs: Sequence[WorkerSpec], clock: Clock) -> Adopted:
    """Match survivors with what the configuration asks for; those without a match are for the sweep."""
    by_worker = {survivor.record.worker: survivor for survivor in found}
    adoptions: dict[str, Adoption] = {}
    taken: list[WorkerSpec] = []
    for spec in specs:
        survivor = by_worker.get(spec.name)
        adoption = _adoption(survivor, spec, clock) if survivor is not None and spec.static is None else None
        if survivor is not None and adoption is not None:
            adoptions[spec.name] = adoption
            spec = dataclasses.replace(spec, api_key=survivor.api_key, gpus=survivor.record.gpus)
        taken.append(spec)
    return Adopted(adoptions, tuple(taken))


def _adoption(survivor: Survivor, spec: WorkerSpec, clock: Clock) -> Adoption | None:
    record = survivor.record
    if record.argv_hash != fingerprint(spec) or record.address is None:
        return None
    try:
        process = AdoptedProcess(record.pid, record.start_ticks, clock)
    except WorkerStartError:
        return None  # gone since it was looked at
    return Adoption(
        launch_id=record.launch_id,
        address=record.address,
        process=RecordedProcess(process, survivor.files),
        gpus=record.gpus,
        was_ready=survivor.was_ready,
        started_at_s=_started_at_s(record.pid, clock),
        scratch_dir=Path(record.scratch_dir) if record.scratch_dir else None,
    )


def _started_at_s(pid: int, clock: Clock) -> float | None:
    try:
        age_s = clock.unix() - psutil.Process(pid).create_time()
    except psutil.Error:
        return None
    return clock.monotonic() - max(0.0, age_s)
