"""Launch records: what a killed supervisor leaves is found by its successor, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gateway.clock import SystemClock
from gateway.control.records import (
    LAUNCH_ID_VARIABLE,
    LaunchRecord,
    RecordedProcess,
    RecordFiles,
    RecordingLauncher,
    boot_id,
    leftover,
    note_ready,
    start_ticks,
    sweep,
)
from gateway.control.state_dir import held
from gateway.errors import WorkerStartError
from gateway.types import WorkerAddress
from gateway.workers.adoption import AdoptedProcess
from gateway.workers.command_line import CommandLine
from gateway.workers.process import SessionLauncher
from gateway.workers.shared_memory import SHARED

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
# The API server and, in the same session, an engine process that outlives it.
FAMILY = (
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    f"child = subprocess.Popen({list(SLEEP)!r})\n"
    "print(child.pid, flush=True); time.sleep(600)",
)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes the test starts; whatever is left of their sessions is killed."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def start(started: list[subprocess.Popen[bytes]], argv: tuple[str, ...], **environ: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE, env={**os.environ, **environ})
    started.append(process)
    return process


def record(process: subprocess.Popen[bytes], **changes: object) -> LaunchRecord:
    found = LaunchRecord(
        launch_id="launch",
        worker="m-0",
        boot_id=boot_id(),
        argv=SLEEP,
        pid=process.pid,
        start_ticks=start_ticks(process.pid) or 0,
    )
    return msgspec.structs.replace(found, **changes)  # type: ignore[arg-type]


def write(folder: Path, *records: LaunchRecord) -> None:
    for each in records:
        (folder / f"{each.launch_id}.json").write_bytes(msgspec.json.encode(each))


def test_a_whole_session_is_found_and_killed(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """The engine process of a killed API server would keep the GPU; it goes, and so does the record."""
    family = start(started, FAMILY)
    assert family.stdout is not None
    child = int(family.stdout.readline())
    write(tmp_path, record(family))
    family.kill()
    family.wait()
    assert start_ticks(child) is not None, "the child outlives its parent"

    swept = sweep(tmp_path)

    assert (("m-0",), (child,), ()) == (swept.workers, swept.killed, swept.survivors)
    assert start_ticks(child) is None
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes", [{"boot_id": "another boot"}, {"start_ticks": 1}], ids=["another-boot", "pid-given-to-somebody-else"]
)
def test_a_process_that_only_has_the_same_pid_is_left_alone(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], changes: dict[str, object]
) -> None:
    """Its record is removed: it says nothing any more."""
    stranger = start(started, SLEEP)
    write(tmp_path, record(stranger, **changes))

    swept = sweep(tmp_path)

    assert ((), ()) == (swept.workers, swept.killed)
    assert stranger.poll() is None
    assert [] == list(tmp_path.iterdir())


def test_a_launch_interrupted_before_its_pid_was_written_is_found_by_its_mark(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """The supervisor was killed between the spawn and the second write; a process with another mark stays."""
    ours = start(started, SLEEP, **{LAUNCH_ID_VARIABLE: "launch"})
    other = start(started, SLEEP, **{LAUNCH_ID_VARIABLE: "another"})
    write(tmp_path, record(ours, pid=0, start_ticks=0))

    swept = sweep(tmp_path)

    assert (ours.pid,) == swept.killed
    assert -signal.SIGKILL == ours.wait(10)
    assert other.poll() is None


def test_what_is_no_record_is_removed(tmp_path: Path) -> None:
    """Records are written whole, so a broken one is of another release; it must not stop every later start."""
    (tmp_path / "x.json").write_text("{")

    assert ((), (), ()) == (lambda swept: (swept.workers, swept.killed, swept.survivors))(sweep(tmp_path))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.anyio
async def test_a_launch_leaves_a_record_until_its_session_is_gone(tmp_path: Path) -> None:
    """Complete with pid and start time, the mark in the environment, no secret in it."""
    records, logs = tmp_path / "records", tmp_path / "logs"
    records.mkdir()
    logs.mkdir()
    launcher = RecordingLauncher(SessionLauncher(SystemClock()), records)
    environ = {**os.environ, "VLLM_API_KEY": "secret-of-the-worker"}
    process = await launcher.launch(CommandLine(argv=SLEEP, environ=environ), logs / "m-0.log")
    (path,) = records.glob("*.json")
    (key,) = records.glob("*.key")
    found = msgspec.json.decode(path.read_bytes(), type=LaunchRecord)

    assert ("m-0", process.pid, start_ticks(process.pid)) == (found.worker, found.pid, found.start_ticks)
    assert frozenset({process.pid}) == leftover(found)
    assert frozenset({process.pid}) == leftover(msgspec.structs.replace(found, pid=0))
    assert b"secret" not in path.read_bytes()
    assert ("secret-of-the-worker", 0o600) == (key.read_text(), stat.S_IMODE(key.stat().st_mode))
    process.kill_group()
    assert () == await process.sweep(10)
    assert [] == list(records.iterdir())


@pytest.mark.anyio
async def test_a_launch_that_fails_leaves_no_record(tmp_path: Path) -> None:
    launcher = RecordingLauncher(SessionLauncher(SystemClock()), tmp_path)
    command = CommandLine(argv=("/no/such/program",), environ={})
    with pytest.raises(WorkerStartError):
        await launcher.launch(replace(command), tmp_path / "m-0.log")

    assert not any(name.endswith(".json") for name in os.listdir(tmp_path))


def test_spared_launches_are_left_as_they_are(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Their processes, records, keys and marks; a key whose record was never written goes."""
    kept, gone = start(started, SLEEP), start(started, SLEEP)
    write(tmp_path, record(kept, launch_id="kept"), record(gone, launch_id="gone"))
    for name in ("kept.key", "gone.key", "never.key", "gone.ready"):
        (tmp_path / name).touch()
    note_ready(tmp_path, "kept")
    note_ready(tmp_path, "nobody")

    swept = sweep(tmp_path, spare={"kept"})

    assert (gone.pid,) == swept.killed
    assert kept.poll() is None
    assert ["kept.json", "kept.key", "kept.ready"] == sorted(path.name for path in tmp_path.iterdir())


HOLD = """
import sys, time
files = [open(name, "r+b") for name in sys.argv[1:]]
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def segments() -> Iterator[list[str]]:
    """Shared memory as Python's multiprocessing makes it."""
    names = [f"psm_{uuid.uuid4().hex[:8]}" for _ in range(3)]
    for name in names:
        (SHARED / name).write_bytes(b"0" * 4096)
    yield names
    for name in names:
        (SHARED / name).unlink(missing_ok=True)


def holder(started: list[subprocess.Popen[bytes]], names: list[str]) -> subprocess.Popen[bytes]:
    """A process that uses these."""
    process = start(started, (sys.executable, "-c", HOLD, *(str(SHARED / name) for name in names)))
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.skipif(not SHARED.is_dir(), reason="this system has no /dev/shm")
@pytest.mark.parametrize("interrupted", [False, True])
def test_shared_memory_of_a_worker_that_died_with_its_gateway_is_removed(
    tmp_path: Path,
    started: list[subprocess.Popen[bytes]],
    segments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
) -> None:
    """
    The dead tell nothing: its names were noted when it became READY. What somebody else uses by then stays. A sweep
    that is killed before it has removed them leaves it to the next.
    """

    def killed(names: object) -> None:
        raise KeyboardInterrupt

    worker, other = holder(started, segments[:2]), holder(started, segments[1:])
    write(tmp_path, record(worker))
    note_ready(tmp_path, "launch")
    worker.kill()
    worker.wait()
    if interrupted:
        with monkeypatch.context() as patched:
            patched.setattr("gateway.control.records.remove_segments", killed)
            with pytest.raises(KeyboardInterrupt):
                sweep(tmp_path)

    assert () == sweep(tmp_path).killed
    assert [False, True, True] == [(SHARED / name).exists() for name in segments]
    assert [] == list(tmp_path.iterdir())
    assert other.poll() is None


@pytest.mark.anyio
@pytest.mark.skipif(not SHARED.is_dir(), reason="this system has no /dev/shm")
async def test_shared_memory_of_an_adopted_worker_goes_with_it(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], segments: list[str]
) -> None:
    """Also what was named by a process of it that died under nobody's eyes."""
    worker = holder(started, [])
    write(tmp_path, record(worker))
    note_ready(tmp_path, "launch")
    files = RecordFiles(tmp_path, "launch")
    files.ready.write_text(segments[0])
    adopted = RecordedProcess(AdoptedProcess(worker.pid, start_ticks(worker.pid) or 0, SystemClock()), files)
    adopted.kill_group()
    worker.wait()

    assert () == await adopted.sweep(10)
    assert [False, True, True] == [(SHARED / name).exists() for name in segments]
    assert [] == os.listdir(tmp_path)


@pytest.mark.parametrize(
    "damage", [b"", b"\0" * 40, b"\xff\xfe\n", b"psm_\0x\n/tmp/psm_%d\npsm_x/../../../tmp/psm_%d\n\n"]
)
def test_a_damaged_mark_removes_nothing_and_stops_nobody(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], damage: bytes
) -> None:
    """After a power failure it may hold anything."""
    victim = Path(f"/tmp/psm_{os.getpid()}")
    victim.touch()
    worker = start(started, SLEEP)
    write(tmp_path, record(worker))
    (tmp_path / "launch.ready").write_bytes(damage.replace(b"%d", b"%d" % os.getpid()))

    assert (worker.pid,) == sweep(tmp_path).killed
    assert [] == list(tmp_path.iterdir())
    victim.unlink()


def test_the_socket_of_a_swept_worker_goes_with_it(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Its name is of this launch, so no later one would replace it."""
    records, socket, scratch = tmp_path / "records", tmp_path / "0123.sock", tmp_path / "tmp-0123"
    records.mkdir()
    socket.touch()
    scratch.mkdir()
    worker = start(started, SLEEP)
    write(records, record(worker, address=WorkerAddress(uds=str(socket)), scratch_dir=str(scratch)))

    assert (worker.pid,) == sweep(records).killed
    assert [records] == list(tmp_path.iterdir())


KILLED_AT_WRITE = """
import os, sys
from pathlib import Path
import anyio
from gateway.clock import SystemClock
from gateway.control.records import RecordingLauncher
from gateway.types import WorkerAddress
from gateway.workers.adoption import AdoptedProcess
from gateway.workers.command_line import CommandLine
from gateway.workers.process import SessionLauncher
from gateway.workers.shared_memory import SHARED

folder, last, *argv = sys.argv[1:]
calls, put_in_place = [], os.replace

def counted(*names):
    calls.append(names)
    return os.kill(os.getpid(), 9) if len(calls) == int(last) else put_in_place(*names)

os.replace = counted
launcher = RecordingLauncher(SessionLauncher(SystemClock()), Path(folder))
command = CommandLine(argv=argv, environ={**os.environ, "VLLM_API_KEY": "worker-secret"})
anyio.run(launcher.launch, command, Path(folder).with_name("m-0.log"))
"""


@pytest.mark.parametrize("unfinished", ["key", "record", "complete record"])
def test_a_launch_that_was_killed_while_it_wrote_leaves_nothing(tmp_path: Path, unfinished: str) -> None:
    """What was unfinished, a secret among it, is gone under the next owner, and so is the worker if there is one."""
    write_number = ["key", "record", "complete record"].index(unfinished) + 1
    folder = tmp_path / "records"
    folder.mkdir()
    argv = [sys.executable, "-c", KILLED_AT_WRITE, str(folder), str(write_number), *SLEEP]
    assert -signal.SIGKILL == subprocess.run(argv, check=False, timeout=60).returncode
    assert 1 == sum(path.name.startswith(".") for path in folder.iterdir())
    assert write_number == len(list(folder.iterdir()))

    with held(tmp_path) as state:
        swept = sweep(state.records)

    assert [] == list(folder.iterdir())
    assert (("m-0",) if unfinished == "complete record" else (), ()) == (swept.workers, swept.survivors)
