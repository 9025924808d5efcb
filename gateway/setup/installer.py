"""
Runs the programs that set-up consists of (venv, pip, the model's conversion) and follows what they print.

Standard library only: the bootstrap uses it before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gateway.setup.progress import Report, SetupProgress

# Variables that would make Python or pip put files elsewhere than into the environment they belong to.
MISLEADING = ("PIP_PREFIX", "PIP_ROOT", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")

TEMPORARY = "tmp"
"""In a folder that is built: the TMPDIR of the programs that build it."""
_COLLECTING = re.compile(r"(?:Collecting|Requirement already satisfied:) ([\w.+-]+)==([\w.+!-]+)")
_DOWNLOADING = re.compile(r"\s*Downloading ([\w.+-]+?)-([\w.+!]+)-\S+ \(([\d.]+ \wB)\)")
_UNREACHABLE = re.compile(r"after connection broken by '(\w+)\(['\"]([^'\"]*)")
_INSTALLING = re.compile(r"Installing collected packages: ")


class StepFailed(Exception):
    """A program of the set-up ended with an error. `tail` is the end of what it printed."""

    def __init__(self, command: Sequence[str], code: int, tail: Sequence[str]) -> None:
        self.command = tuple(command)
        self.code = code
        self.tail = tuple(tail)
        shown = " ".join(part if part.isprintable() else "..." for part in command[:5])
        super().__init__(f"{shown} ... ended with {code}")

    @property
    def reason(self) -> str:
        """
        What the operator should read of it: that the package index could not be reached, for pip itself only says then
        that there is no such package; else the last error; else the last line.
        """
        lines = [line.strip() for line in self.tail if line.strip()]
        for line in reversed(lines):
            if match := _UNREACHABLE.search(line):
                return f"pip could not reach the package index ({match[1]}: {match[2]})"
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it printed nothing"])[-1]


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for pip and its like: the operator's own, proxies and pip settings included, less MISLEADING."""
    kept = {name: value for name, value in environ.items() if name not in MISLEADING}
    # Their caches are the operator's; what they print is for us and must not depend on the terminal.
    return kept | {
        "PIP_USER": "0",
        "PIP_NO_INPUT": "1",
        "PIP_PROGRESS_BAR": "off",
        "PIP_NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """
    SIGTERM and SIGHUP arrive as KeyboardInterrupt, so that what runs is killed before we end; without this the default
    action would end us at once and leave pip running.

    Does nothing where somebody handles the signals already, and outside the main thread, where nobody may.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for one in taken:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)


def run_step(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    lock: int,
    log: Path,
    folder: Path,
    on_line: Callable[[str], None] = lambda line: None,
    cwd: Path | None = None,
) -> list[str]:
    """
    Run one program to its end; everything it prints is appended to `log` and given to `on_line`.

    The program inherits `lock`, so `folder`, which it helps to build, stays locked for as long as anybody writes into
    it. Whatever interrupts us (Ctrl-C, SIGTERM) kills the program and all that it started first. pip has gigabytes in
    TMPDIR by then, which nobody would ever remove, and which do not fit into many a /tmp; so its TMPDIR lies in
    `folder`, and what is left there goes with the unfinished folder.

    Returns the last lines printed; raises StepFailed when it fails.
    """
    tail: deque[str] = deque(maxlen=40)
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        termination_interrupts(),
        _temporary(folder / TEMPORARY) as temporary,
        open(log, "a", encoding="utf-8") as record,
        subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=child_environment(environ) | {"TMPDIR": str(temporary)},
            pass_fds=(lock,),
            process_group=0,
            cwd=cwd,
        ) as process,
    ):
        assert process.stdout is not None
        record.write(f"$ {' '.join(command)}\n")
        try:
            for line in process.stdout:
                record.write(line)
                tail.append(line.rstrip("\n"))
                on_line(tail[-1])
            code = process.wait()
        except BaseException:
            # The whole group: venv and pip start programs of their own, which do not hold the lock.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if code != 0:
        raise StepFailed(command, code, tail)
    return list(tail)


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pip_lines(subject: str, total: int, report: Report) -> Callable[[str], None]:
    """A reader of pip's output that reports which of `total` requirements it has come to and how large each is."""
    seen = 0

    def read(line: str) -> None:
        nonlocal seen
        if match := _COLLECTING.match(line):
            seen = min(seen + 1, total)
            what = f"{match[1]} {match[2]}"
            report(SetupProgress(subject, "collecting", what, done=seen, total=total, notable=False))
        elif match := _DOWNLOADING.match(line):
            what = f"{match[1]} {match[2]} ({match[3]})"
            large = "GB" in match[3] or ("MB" in match[3] and float(match[3].split()[0]) >= 50)
            report(SetupProgress(subject, "downloading", what, done=seen, total=total, notable=large))
        elif _INSTALLING.match(line):
            packages = line.count(",") + 1
            if packages > 1:
                report(SetupProgress(subject, "installing", f"{packages} packages, no output until the end"))

    return read


def requirements_in(lock: str) -> int:
    """How many requirements a lock's text holds, those for other platforms included."""
    return sum(1 for line in lock.splitlines() if line[:1].isalnum() and "==" in line)
