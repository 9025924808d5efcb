"""
Launch records: how the next supervisor finds the workers of one that was killed.

Workers live in sessions of their own and outlive a supervisor that dies without stopping them; they would hold their
GPUs for ever. So every launch leaves a file, written and synced before the spawn, with a launch id that the worker
carries in its environment, and completed with pid and start time after it. `sweep` kills what the records of a dead
supervisor lead to. The state directory must be held (`state_dir.held`): that proves that their owner is gone.

A worker is recognised by

    its leader    same boot, same pid, same start ticks;
    its session   processes whose session id is the recorded pid, also when the leader is dead (vLLM's engine processes
                  survive their API server). A pid is not given out again while it names a session, so they are ours;
    its mark      `GATEWAY_LAUNCH_ID` in the environment, for the moment between the spawn and the second write.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from gateway.durable import write_atomically
from gateway.types import WorkerAddress
from gateway.workers.command_line import CommandLine
from gateway.workers.platform import start_ticks
from gateway.workers.process import session_members
from gateway.workers.scratch import remove_scratch
from gateway.workers.services import Launcher, WorkerProcess
from gateway.workers.shared_memory import remove_segments, segments_of

LAUNCH_ID_VARIABLE = "GATEWAY_LAUNCH_ID"
API_KEY_VARIABLE = "VLLM_API_KEY"


class LaunchRecord(msgspec.Struct, frozen=True):
    """
    One launch of one worker. `pid` and `start_ticks` are 0 until the spawn has happened.

    `argv` is for people; it holds no secret (workers' keys travel in the environment). `argv_hash` is what the
    configuration asked of the launch (`workers.command_line.fingerprint`), and `address`, `gpus` and `scratch_dir` (its
    TMPDIR, "" for none) what it was given: with them the next supervisor can tell whether it would start the same
    process itself, and clean up after it.
    """

    launch_id: str
    worker: str
    boot_id: str
    argv: tuple[str, ...]
    pid: int = 0
    start_ticks: int = 0
    argv_hash: str = ""
    address: WorkerAddress | None = None
    gpus: tuple[int, ...] = ()
    scratch_dir: str = ""


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """
    The files of one launch: the record, the worker's key (mode 0600, apart from the record, which people may paste),
    and a mark that it was READY once, with the names of the shared memory that it had then.
    """

    folder: Path
    launch_id: str

    @property
    def record(self) -> Path:
        return self.folder / f"{self.launch_id}.json"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.launch_id}.key"

    @property
    def ready(self) -> Path:
        return self.folder / f"{self.launch_id}.ready"

    def segments(self) -> frozenset[str]:
        """Shared memory that it had when it became READY; once all its processes are dead nothing else tells."""
        try:
            return frozenset(os.fsdecode(self.ready.read_bytes()).splitlines())
        except FileNotFoundError:
            return frozenset()

    def remove(self) -> None:
        """The launch is over. The record goes last: without it nobody would look for the others."""
        for path in (self.key, self.ready, self.record):
            path.unlink(missing_ok=True)


def note_ready(folder: Path, launch_id: str) -> None:
    """The launch serves: a supervisor that adopts it need not wait for a start. Nothing happens without a record."""
    files = RecordFiles(folder, launch_id)
    if files.record.exists() and (record := _read(files.record)) is not None:
        files.ready.touch(mode=0o600)
        with suppress(OSError):  # a full disk: the mark counts, and who is swept while it lives tells the names itself
            files.ready.write_bytes(os.fsencode("\n".join(sorted(segments_of(session_members(record.pid))))))


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: workers whose leftovers were killed, and processes that outlived even that."""

    workers: tuple[str, ...]
    killed: tuple[int, ...]
    survivors: tuple[int, ...]


class RecordingLauncher:
    """A `Launcher` that keeps a record of every process it starts for as long as anything of its session lives."""

    def __init__(self, inner: Launcher, folder: Path) -> None:
        self._inner = inner
        self._folder = folder
        self._boot_id = boot_id()

    async def launch(self, command: CommandLine, log_file: Path) -> WorkerProcess:
        """Write the record, start the process, complete the record."""
        record = LaunchRecord(
            launch_id=command.launch_id or uuid.uuid4().hex,
            worker=log_file.stem,
            boot_id=self._boot_id,
            argv=tuple(command.argv),
            argv_hash=command.fingerprint,
            address=command.address,
            gpus=command.gpus,
            scratch_dir=str(command.scratch_dir or ""),
        )
        files = RecordFiles(self._folder, record.launch_id)
        if key := command.environ.get(API_KEY_VARIABLE):
            write_atomically(files.key, key.encode())
        write_atomically(files.record, msgspec.json.encode(record))
        marked = replace(command, environ={**command.environ, LAUNCH_ID_VARIABLE: record.launch_id})
        try:
            process = await self._inner.launch(marked, log_file)
        except Exception:
            files.remove()  # not on cancellation: the spawn may have happened
            raise
        complete = msgspec.structs.replace(record, pid=process.pid, start_ticks=start_ticks(process.pid) or 0)
        write_atomically(files.record, msgspec.json.encode(complete))
        return RecordedProcess(process, files)


class RecordedProcess:
    """Passes everything on; a sweep without survivors ends the record."""

    def __init__(self, inner: WorkerProcess, files: RecordFiles) -> None:
        self._inner = inner
        self._files = files

    @property
    def pid(self) -> int:
        return self._inner.pid

    @property
    def returncode(self) -> int | None:
        return self._inner.returncode

    async def wait(self) -> int:
        return await self._inner.wait()

    def terminate(self) -> None:
        self._inner.terminate()

    def kill_group(self) -> None:
        self._inner.kill_group()

    def listens_on(self, address: WorkerAddress) -> bool | None:
        return self._inner.listens_on(address)

    async def sweep(self, deadline_s: float) -> tuple[int, ...]:
        survivors = await self._inner.sweep(deadline_s)
        if not survivors:
            remove_segments(self._files.segments())
            self._files.remove()
        return survivors


def sweep(folder: Path, *, deadline_s: float = 10.0, spare: Collection[str] = ()) -> Swept:
    """
    Kill what is left of the workers whose records lie in `folder`, and remove the records of those that are gone.

    Blocks until they are gone, at most `deadline_s`. Launches in `spare` (by id) are left as they are.
    """
    found = {record.launch_id: record for record in read_records(folder) if record.launch_id not in spare}
    leftovers = {name: members for name, record in found.items() if (members := leftover(record))}
    killed = tuple(sorted({pid for members in leftovers.values() for pid in members}))
    segments = set(segments_of(killed))  # only the living can tell which are theirs
    survivors = _kill(leftovers.values(), [found[name] for name in leftovers], deadline_s)
    over = [
        (record, RecordFiles(folder, name)) for name, record in found.items() if not survivors or not leftover(record)
    ]
    for record, files in over:
        segments |= files.segments()
        if record.scratch_dir:
            remove_scratch(Path(record.scratch_dir))
        if record.address is not None and record.address.uds:
            Path(record.address.uds).unlink(missing_ok=True)
    remove_segments(segments)
    # Last: they alone tell what there is to remove.
    for _, files in over:
        files.remove()
    _remove_orphans(folder)
    return Swept(
        workers=tuple(sorted({found[name].worker for name in leftovers})), killed=killed, survivors=tuple(survivors)
    )


def read_records(folder: Path) -> list[LaunchRecord]:
    """All records in the folder; what is none is removed."""
    return [record for path in sorted(folder.glob("*.json")) if (record := _read(path)) is not None]


def leftover(record: LaunchRecord) -> frozenset[int]:
    """The live processes that belong to the launch; see the module for how they are recognised."""
    if record.boot_id != boot_id():
        return frozenset()
    if record.pid:
        ticks = start_ticks(record.pid)
        if ticks is not None and ticks != record.start_ticks:
            return frozenset()  # the pid was given to somebody else, so our session had ended
        return frozenset(pid for pid in _own_pids() if _session(pid) == record.pid)
    return frozenset(pid for pid in _own_pids() if _marked(pid, record.launch_id))


def boot_id() -> str:
    """What changes with every start of the machine: pids of another boot mean nothing."""
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    else:
        return str(int(psutil.boot_time()))


def _read(path: Path) -> LaunchRecord | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LaunchRecord)
    except msgspec.DecodeError:
        path.unlink(missing_ok=True)  # written atomically, so this is of another version: nothing can be told from it
        return None


def _remove_orphans(folder: Path) -> None:
    """Keys and marks whose record was never written: the supervisor was killed in between."""
    for path in (*folder.glob("*.key"), *folder.glob("*.ready")):
        if not path.with_suffix(".json").exists():
            path.unlink(missing_ok=True)


def _own_pids() -> list[int]:
    user = os.geteuid()
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().effective == user and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
    return pids


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _marked(pid: int, launch_id: str) -> bool:
    try:
        return psutil.Process(pid).environ().get(LAUNCH_ID_VARIABLE) == launch_id
    except (psutil.Error, OSError):
        return False


def _kill(groups: Iterable[frozenset[int]], records: list[LaunchRecord], deadline_s: float) -> list[int]:
    pids = {pid for members in groups for pid in members}
    until = time.monotonic() + deadline_s
    while pids:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.05)
        # Looked up again: one of them may have started another in the meantime.
        pids = {pid for record in records for pid in leftover(record)}
    return sorted(pids)
