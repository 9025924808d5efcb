"""
System programs that some tests need: from PATH, else unpacked from Debian packages into `.system/`, without root.

`make system-deps` provides them all; tests ask for the one they need. apt verifies what it downloads as usual, with
its lists and archives kept in `.build/apt`, and dpkg's database is not touched: nothing is installed on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import EnvironmentProblem
from gateway.setup.completion import discard, exclusive, finish, finished
from gateway.setup.installer import StepFailed, run_step
from gateway.setup.light import checkout
from gateway.setup.progress import ProgressPrinter, Report, SetupProgress


@dataclass(frozen=True, slots=True)
class SystemProgram:
    """
    A program, the Debian package that holds it, and where in that package it lies.

    `binary` is what to start: Debian's chromium is a script that looks for the real one below /usr.
    """

    name: str
    package: str
    binary: str


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """
    What to start, and the environment variables it needs in addition to find its libraries when it was unpacked.
    """

    path: Path
    environ: Mapping[str, str]


PROGRAMS = {
    program.name: program
    for program in (
        SystemProgram("nginx", "nginx-light", "usr/sbin/nginx"),
        SystemProgram("prometheus", "prometheus", "usr/bin/prometheus"),
        SystemProgram("promtool", "prometheus", "usr/bin/promtool"),
        SystemProgram("chromium", "chromium", "usr/lib/chromium/chromium"),
    )
}


def find_program(program: SystemProgram, root: Path, environ: Mapping[str, str]) -> FoundProgram | None:
    """The program on PATH (or in /usr/sbin, which users' PATH may lack), else unpacked in `.system/`; None: neither."""
    path = os.pathsep.join((environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    if on_path := shutil.which(program.name, path=path):
        return FoundProgram(Path(on_path), {})
    folder = _folder(program, root)
    unpacked = folder / program.binary
    if finished(folder, program.package) is None or not unpacked.exists():
        return None
    libraries = sorted({str(library.parent) for library in folder.glob("usr/lib/*-linux-gnu/**/*.so*")})
    return FoundProgram(unpacked, {"LD_LIBRARY_PATH": os.pathsep.join(libraries)})


def ensure_program(name: str, root: Path, environ: Mapping[str, str], report: Report) -> FoundProgram:
    """
    The program, unpacked first when the machine has none. Blocks; safe against two runs at once and interruption.

    Raises EnvironmentProblem with the command that installs it.
    """
    program = PROGRAMS[name]
    if (found := find_program(program, root, environ)) is not None:
        return found
    fix = f"sudo apt-get install {program.package} (or your system's package of {name})"
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool, path=environ.get("PATH")) is None]
    if missing:
        raise EnvironmentProblem(f"{name} is not installed and, without {missing[0]}, cannot be unpacked", fix=fix)
    folder = _folder(program, root)
    log = root / ".build" / f"{program.package}.log"

    def waiting(holder: str) -> None:
        report(SetupProgress("system", "waiting", f"process {holder} is unpacking packages"))

    try:
        # One lock for all: they share apt's lists and archives.
        with exclusive(root / ".build" / "system.lock", waiting) as lock:
            if finished(folder, program.package) is None:
                _unpack(program, folder, root, environ, lock, log, report)
    except (StepFailed, OSError) as problem:
        raise EnvironmentProblem(f"{name} could not be unpacked: {problem}; see {log}", fix=fix) from problem
    found = find_program(program, root, environ)
    if found is None:
        raise EnvironmentProblem(f"the package {program.package} holds no {program.binary}", fix=fix)
    return found


def _unpack(
    program: SystemProgram,
    folder: Path,
    root: Path,
    environ: Mapping[str, str],
    lock: int,
    log: Path,
    report: Report,
) -> None:
    """Download the package and what the machine lacks of its needs, unpack all of it; the caller holds the lock."""
    report(SetupProgress("system", "downloading", f"{program.package} and its libraries, into {folder}"))
    discard(folder)
    folder.mkdir(parents=True)
    log.unlink(missing_ok=True)
    lists, cache = root / ".build" / "apt" / "lists", root / ".build" / "apt" / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    apt = ["apt-get", "-q", "-y", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}"]
    # Not to need root: no lock on the machine's own apt, and no change of user for the download.
    apt += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]
    run_step([*apt, "update"], environ=environ, lock=lock, log=log, folder=folder)
    install = ["--download-only", "--no-install-recommends", "--reinstall", "install", program.package]
    run_step([*apt, *install], environ=environ, lock=lock, log=log, folder=folder)
    archives = sorted((cache / "archives").glob("*.deb"))
    report(SetupProgress("system", "unpacking", f"{len(archives)} packages"))
    for archive in archives:
        run_step(
            ["dpkg-deb", "--extract", str(archive), str(folder)], environ=environ, lock=lock, log=log, folder=folder
        )
    finish(folder, program.package, {"archives": " ".join(one.name for one in archives)})
    shutil.rmtree(cache)
    report(SetupProgress("system", "ready", str(folder)))


def _folder(program: SystemProgram, root: Path) -> Path:
    return root / ".system" / program.package


def main(environ: Mapping[str, str], names: Sequence[str] = ()) -> int:
    """Provide the programs named, or every one; exit code 3 when one cannot be."""
    root = checkout()
    report = ProgressPrinter(sys.stderr)
    code = 0
    for name in names or PROGRAMS:
        try:
            found = ensure_program(name, root, environ, report)
            version = subprocess.run(
                [str(found.path), "-v" if name == "nginx" else "--version"],
                env={**environ, **found.environ},
                capture_output=True,
                text=True,
                check=False,
            )
            said = (version.stdout + version.stderr).strip().splitlines() or [f"exit code {version.returncode}"]
            print(f"{name:<11} {found.path}  {said[0]}")
            if version.returncode != 0:
                code = EnvironmentProblem.exit_code
        except EnvironmentProblem as problem:
            print(f"{name:<11} {problem}", file=sys.stderr)
            code = problem.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main(os.environ, sys.argv[1:]))
