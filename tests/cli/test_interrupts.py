"""Ctrl-C at any moment of a short command is one line and exit code 130, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

DEMO = Path(__file__).parents[2] / "deploy/examples/demo.yaml"


@pytest.mark.parametrize("arguments", [["doctor"], ["check", str(DEMO)]], ids=["doctor", "check"])
def test_ctrl_c_is_told_in_one_line(tmp_path: Path, arguments: list[str]) -> None:
    """Interrupted after ever longer times, from the first import to the end of the command. (Before our first line runs
    the interpreter itself dies of the signal; what was done before the signal came counts as done.)"""
    environ = {**os.environ, "GATEWAY_STATE_DIR": str(tmp_path / "state")}
    pause = threading.Event()
    codes = set()
    for step in range(1, 13):
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        pause.wait(0.06 * step)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        codes.add(process.returncode)

        assert "Traceback" not in error or "gateway" not in error
        assert process.returncode in (0, 3, 130, -signal.SIGINT), error
    assert 130 in codes
