"""
Builds the light environment: the gateway, its load tests and tools, in `.venv` of the checkout, without any engine; and
compiles the relay's hot modules into it.

Run by `gateway.setup.bootstrap` under an interpreter this project supports; standard library only.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.setup.compiled import built, ensure_compiled
from gateway.setup.completion import discard, exclusive, finish, finished
from gateway.setup.doctor import Purpose, Severity, doctor_report, findings
from gateway.setup.facts import gather_facts
from gateway.setup.installer import StepFailed, pip_lines, requirements_in, run_step
from gateway.setup.progress import ProgressPrinter, Report, SetupProgress
from gateway.setup.sizes import LIGHT, megabytes

EXIT_ENVIRONMENT = 3


def checkout() -> Path:
    """The folder that holds pyproject.toml: this file lies in its gateway/setup/."""
    return Path(__file__).resolve().parent.parent.parent


def light_key(root: Path, python: tuple[int, int, int]) -> str:
    """
    What the environment was built from: the lock, the parts of pyproject.toml that reach the installation, the Python.

    Raises OSError or tomllib.TOMLDecodeError when the checkout is damaged.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    installed = {part: project.get(part) for part in ("build-system", "project")}
    digest = hashlib.sha256((root / "requirements" / "lock.txt").read_bytes())
    digest.update(json.dumps(installed, sort_keys=True).encode())
    return f"{digest.hexdigest()[:16]}-py{python[0]}.{python[1]}.{python[2]}-{root}"


def ensure_light(root: Path, base_python: str, environ: Mapping[str, str], report: Report) -> Path:
    """
    The interpreter of a finished light environment, built first when there is none.

    Args:
        root: The checkout.
        base_python: Interpreter to build with; the version of the running one decides the key.

    Raises StepFailed when a program fails, OSError when the folder cannot be written.
    """
    folder = root / ".venv"
    python = folder / "bin" / "python"
    key = light_key(root, (sys.version_info.major, sys.version_info.minor, sys.version_info.micro))
    if finished(folder, key) is not None and python.exists():
        return python
    log = root / ".build" / "light.log"

    def waiting(holder: str) -> None:
        report(SetupProgress("gateway", "waiting", f"process {holder} is installing into {folder}"))

    with exclusive(root / ".build" / "light.lock", waiting) as lock:
        if finished(folder, key) is not None and python.exists():
            return python
        locked = root / "requirements" / "lock.txt"
        total = requirements_in(locked.read_text(encoding="utf-8"))
        report(
            SetupProgress(
                "gateway",
                "installing",
                f"{total} packages, about {megabytes(LIGHT.download)} to download and {megabytes(LIGHT.disk)} on disk, "
                f"into {folder}{' (what is there is replaced)' if folder.exists() else ''}",
            )
        )
        discard(folder)
        log.unlink(missing_ok=True)
        run_step([base_python, "-I", "-m", "venv", str(folder)], environ=environ, lock=lock, log=log, folder=folder)
        pip = [str(python), "-I", "-u", "-m", "pip", "install", "--disable-pip-version-check"]
        run_step(
            [*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(locked)],
            environ=environ,
            lock=lock,
            log=log,
            folder=folder,
            on_line=pip_lines("gateway", total, report),
        )
        run_step(
            [*pip, "--no-deps", "--no-build-isolation", "--editable", str(root)],
            environ=environ,
            lock=lock,
            log=log,
            folder=folder,
        )
        run_step([str(python), "-I", "-c", "import gateway"], environ=environ, lock=lock, log=log, folder=folder)
        finish(folder, key, {"python": str(python)})
        report(SetupProgress("gateway", "ready", str(folder)))
    return python


def main(environ: Mapping[str, str]) -> int:
    """Exit code 0 when the light environment is finished, 3 when this machine keeps it from being built."""
    root = checkout()
    report = ProgressPrinter(sys.stderr)
    version = (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
    if finished(root / ".venv", light_key(root, version)) is None:
        facts = gather_facts(environ, cache=root, ports=())
        blockers = [one for one in findings(facts, Purpose.LIGHT) if one.severity is Severity.BLOCKER]
        if blockers:
            print(doctor_report(blockers), file=sys.stderr)
            return EXIT_ENVIRONMENT
    # A virtual environment's interpreter may be the very one that is about to be replaced: build with its base.
    base_python = getattr(sys, "_base_executable", "") or sys.executable

    def waiting(holder: str) -> None:
        report(SetupProgress("relay", "waiting", f"process {holder} is working on {root / '.venv'}"))

    def install() -> None:
        ensure_light(root, base_python, environ, report)
        # Failing here costs speed only: the sources run. The environment stays ours meanwhile.
        if built(root, root / ".venv") is None:
            with exclusive(root / ".build" / "light.lock", waiting):
                ensure_compiled(root, root / ".venv", environ, report)

    return exit_code(
        install,
        "The light environment",
        root / ".build" / "light.log",
        "the next run starts over",
    )


def exit_code(install: Callable[[], object], what: str, log: Path, interrupted: str) -> int:
    """Run `install`; 0 when it succeeded, else what keeps it from that is told on standard error."""
    try:
        install()
    except StepFailed as failure:
        print(
            f"{what} could not be installed ({failure}): {failure.reason}; everything printed is in {log}. "
            "To mend it: check the network or pip's configuration "
            "(`python3 -m pip config list`), then run the same command again.",
            file=sys.stderr,
        )
        return EXIT_ENVIRONMENT
    except OSError as problem:
        print(f"The light environment could not be written: {problem}.", file=sys.stderr)
        return EXIT_ENVIRONMENT
    except KeyboardInterrupt:
        print(f"Interrupted; {interrupted}.", file=sys.stderr)
        return 130
    return 0
