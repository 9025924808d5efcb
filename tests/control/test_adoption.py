"""Adoption: which of a killed supervisor's workers go on, and which do not."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.clock import SystemClock
from gateway.control.adoption import adopt, survivors
from gateway.control.records import LaunchRecord, RecordFiles, boot_id, note_ready, start_ticks
from gateway.types import WorkerAddress
from gateway.workers.command_line import fingerprint
from gateway.workers.spec import WorkerSpec
from tests.control.fakes import spec

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own."""
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def launched() -> WorkerSpec:
    return dataclasses.replace(spec(), engine_command=("sleep",), api_key="made-now")


def write(folder: Path, process: subprocess.Popen[bytes], **changes: object) -> LaunchRecord:
    found = LaunchRecord(
        launch_id="launch",
        worker="m-0",
        boot_id=boot_id(),
        argv=SLEEP,
        pid=process.pid,
        start_ticks=start_ticks(process.pid) or 0,
        argv_hash=fingerprint(launched()),
        address=WorkerAddress(host="127.0.0.1", port=4711),
        gpus=(3,),
    )
    found = msgspec.structs.replace(found, **changes)  # type: ignore[arg-type]
    files = RecordFiles(folder, found.launch_id)
    files.record.write_bytes(msgspec.json.encode(found))
    files.key.write_text("made-then")
    return found


def test_a_worker_that_is_as_configured_goes_on(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    """With its launch id, address, GPUs and the key it was started with; it was never READY, so its start goes on."""
    write(tmp_path, worker)
    found = survivors(tmp_path)
    adopted = adopt(found, [launched(), dataclasses.replace(launched(), name="m-1")], SystemClock())
    adoption = adopted.adoptions["m-0"]

    assert {"launch"} == adopted.launches
    assert ("launch", 4711, (3,), False) == (
        adoption.launch_id,
        adoption.address.port,
        adoption.gpus,
        adoption.was_ready,
    )
    assert worker.pid == adoption.process.pid
    assert ["made-then", "made-now"] == [each.api_key for each in adopted.specs]
    assert (worker.pid,) == tuple(found[0].pids)
    assert adoption.started_at_s is not None
    assert abs(adoption.started_at_s - SystemClock().monotonic()) < 60


def test_one_that_served_need_not_start_again(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    note_ready(tmp_path, write(tmp_path, worker).launch_id)

    assert adopt(survivors(tmp_path), [launched()], SystemClock()).adoptions["m-0"].was_ready


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_id": "another boot"},
        {"start_ticks": 1},
        {"pid": 0},
        {"address": None},
        {"argv_hash": ""},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_does_not_match_proc_or_says_too_little_is_no_survivor(
    tmp_path: Path, worker: subprocess.Popen[bytes], changes: dict[str, object]
) -> None:
    write(tmp_path, worker, **changes)

    assert () == survivors(tmp_path)


def test_a_dead_api_server_is_no_survivor(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    write(tmp_path, worker)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()

    assert () == survivors(tmp_path)


@pytest.mark.parametrize(
    "wanted",
    [
        dataclasses.replace(launched(), source="another/model"),
        dataclasses.replace(launched(), name="other-0"),
        dataclasses.replace(launched(), launch=launched().launch.model_copy(update={"max_model_len": 99})),
        dataclasses.replace(launched(), launch=launched().launch.model_copy(update={"env": {"A": "b"}})),
    ],
    ids=["model", "name", "flag", "environment"],
)
def test_one_that_would_be_launched_otherwise_is_not_adopted(
    tmp_path: Path, worker: subprocess.Popen[bytes], wanted: WorkerSpec
) -> None:
    """It is left to the sweep, and the specification keeps its own key."""
    write(tmp_path, worker)
    adopted = adopt(survivors(tmp_path), [wanted], SystemClock())

    assert {} == adopted.adoptions
    assert (wanted,) == adopted.specs
