"""Runs the real promtool on the repository's rules."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gateway.setup.progress import SetupProgress
from gateway.setup.system import FoundProgram, ensure_program

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = sorted((FOLDER / "rules").glob("*.yml"))


def _said(progress: SetupProgress) -> None:
    """pytest shows what fails; progress is of no interest here."""


def program(name: str) -> FoundProgram:
    """prometheus or promtool, unpacked first where the machine has none."""
    return ensure_program(name, ROOT, os.environ, _said)


def promtool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """What it printed, and how it ended."""
    found = program("promtool")
    return subprocess.run(
        [str(found.path), *arguments],
        env={**os.environ, **found.environ},
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
