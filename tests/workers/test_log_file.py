"""A worker's output file: cut while the worker writes, kept for one run more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import WorkerStartError
from gateway.workers.log_file import LogFile
from gateway.workers.log_tail import LogTail


def test_the_run_before_is_kept(tmp_path: Path) -> None:
    """And the one before that is not; what was cut off goes along."""
    log = LogFile(tmp_path / "logs", "w")
    log.set_aside()
    for run in ("one", "two", "three"):
        log.set_aside()
        log.path.write_text(run)
        (tmp_path / "logs" / "w.log.1").write_text(f"{run}, older")
    found = {file.name: file.read_text() for file in (tmp_path / "logs").iterdir()}
    assert {
        "w.log": "three",
        "w.log.1": "three, older",
        "w.previous.log": "two",
        "w.previous.log.1": "two, older",
    } == found


def test_a_run_without_output_keeps_the_last_one(tmp_path: Path) -> None:
    """A launch that never began a file must not lose the evidence."""
    log = LogFile(tmp_path, "w")
    log.path.write_text("crash")
    log.set_aside()
    log.set_aside()
    assert "crash" == (tmp_path / "w.previous.log").read_text()


def test_a_file_is_cut_under_its_writer(tmp_path: Path) -> None:
    """The writer's next line is the first of the file; everything before is in NAME.log.1, once."""
    log = LogFile(tmp_path, "w", max_bytes=100)
    writer = os.open(log.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(writer, b"a" * 100)
        assert not log.is_full()
        os.write(writer, b"\n")
        assert log.is_full()
        log.cut()
        os.write(writer, b"next\n")
    finally:
        os.close(writer)
    assert (b"next\n", b"a" * 100 + b"\n") == (log.path.read_bytes(), (tmp_path / "w.log.1").read_bytes())
    assert 0o600 == (tmp_path / "w.log.1").stat().st_mode & 0o777
    assert {"w.log", "w.log.1"} == set(os.listdir(tmp_path))


KILLED_AT = """
import os, sys
from pathlib import Path
from gateway.workers.log_file import LogFile
setattr(os, sys.argv[2], lambda *_: os.kill(os.getpid(), 9))
LogFile(Path(sys.argv[1]), "w").cut()
"""


@pytest.mark.parametrize("step", ["replace", "ftruncate"])
@pytest.mark.parametrize("how", ["fails", "is killed"])
def test_a_cut_that_does_not_come_to_its_end_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, how: str
) -> None:
    """The content stays where it was, at worst in both files, and the next cut has nothing to tidy up."""

    def not_done(*_: object) -> None:
        raise OSError(5, "Input/output error")

    log = LogFile(tmp_path, "w")
    log.path.write_text("before")
    if how == "fails":
        with monkeypatch.context() as patched:
            patched.setattr(os, step, not_done)
            with pytest.raises(OSError, match="Input"):
                log.cut()
        assert {"w.log", *(["w.log.1"] if step == "ftruncate" else [])} == set(os.listdir(tmp_path))
    else:
        argv = [sys.executable, "-c", KILLED_AT, str(tmp_path), step]
        assert -signal.SIGKILL == subprocess.run(argv, check=False, timeout=60).returncode
    assert "before" == log.path.read_text()
    assert (step == "ftruncate") == (tmp_path / "w.log.1").exists()

    log.cut()
    assert ["", "before"] == [log.path.read_text(), (tmp_path / "w.log.1").read_text()]
    assert {"w.log", "w.log.1"} == set(os.listdir(tmp_path))


def test_setting_aside_that_was_interrupted_is_finished_by_the_next(tmp_path: Path) -> None:
    """The two parts of a run stay together."""
    log = LogFile(tmp_path, "w")
    (tmp_path / "w.previous.log").write_text("second half")
    (tmp_path / "w.log.1").write_text("first half")
    log.set_aside()
    assert "first half" == (tmp_path / "w.previous.log.1").read_text()
    assert "second half" == (tmp_path / "w.previous.log").read_text()
    assert not (tmp_path / "w.log.1").exists()


def test_cutting_again_replaces_the_older_part(tmp_path: Path) -> None:
    """So that the disk holds at most twice the limit for a run."""
    log = LogFile(tmp_path, "w", max_bytes=1)
    for text in ("first", "second"):
        log.path.write_text(text)
        log.cut()
    assert "second" == (tmp_path / "w.log.1").read_text()


def test_the_tail_follows_over_a_cut(tmp_path: Path) -> None:
    """No line is lost or read twice."""
    log, tail = LogFile(tmp_path, "w"), LogTail(tmp_path / "w.log")
    log.path.write_text("one\ntwo\n")
    assert ["one", "two"] == tail.read()
    log.cut()
    assert [] == tail.read()
    with log.path.open("a") as file:
        file.write("three\n")
    assert ["three"] == tail.read()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """With the command that mends it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkerStartError, match=r"make .* writable"):
        LogFile(tmp_path / "file" / "logs", "w").set_aside()
