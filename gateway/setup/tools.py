"""
Adds to the light environment what only development and the tests need: linters, types, pytest, browsers' drivers.

`make test` and its like run it after the bootstrap, so that nobody who serves a model downloads them. It adds and never
replaces: both locks agree on everything that is in both.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.setup.completion import discard, exclusive, finish, finished
from gateway.setup.installer import pip_lines, requirements_in, run_step
from gateway.setup.light import checkout, exit_code
from gateway.setup.progress import ProgressPrinter, Report, SetupProgress
from gateway.setup.sizes import TOOLS, megabytes

LOCK = Path("requirements") / "tools.txt"


def ensure_tools(root: Path, environ: Mapping[str, str], report: Report) -> None:
    """
    Install the tools into the finished light environment of the checkout `root`, unless they are there.

    Raises StepFailed when a program fails, OSError when the folder cannot be written.
    """
    environment = root / ".venv"
    # Inside the environment: one that is built anew has lost its tools.
    folder = environment / "tools"
    locked = (root / LOCK).read_text(encoding="utf-8")
    key = hashlib.sha256(locked.encode()).hexdigest()[:16]
    if finished(folder, key) is not None:
        return

    def waiting(holder: str) -> None:
        report(SetupProgress("tools", "waiting", f"process {holder} is installing into {environment}"))

    with exclusive(root / ".build" / "light.lock", waiting) as lock:
        if finished(folder, key) is not None:
            return
        total = requirements_in(locked)
        report(
            SetupProgress(
                "tools",
                "installing",
                f"what tests and linters need, about {megabytes(TOOLS.download)} to download and "
                f"{megabytes(TOOLS.disk)} on disk, into {environment}",
            )
        )
        discard(folder)
        folder.mkdir(parents=True)
        pip = [str(environment / "bin" / "python"), "-I", "-u", "-m", "pip", "install", "--disable-pip-version-check"]
        run_step(
            [*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(root / LOCK)],
            environ=environ,
            lock=lock,
            log=root / ".build" / "tools.log",
            folder=folder,
            on_line=pip_lines("tools", total, report),
        )
        finish(folder, key, {})
        report(SetupProgress("tools", "ready", str(environment)))


def main(environ: Mapping[str, str]) -> int:
    """Exit code 0 when the tools are there, 3 when this machine keeps them from being installed."""
    root = checkout()
    return exit_code(
        lambda: ensure_tools(root, environ, ProgressPrinter(sys.stderr)),
        "What the tests need",
        root / ".build" / "tools.log",
        "the next run goes on",
    )


if __name__ == "__main__":
    sys.exit(main(os.environ))
