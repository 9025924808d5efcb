"""Lines that we print for copying name this command as it was called."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.cli import as_typed


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `gateway` that the shell finds by its name."""
    program = tmp_path / "gateway"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    return program


def test_a_path_stays_as_it_was_typed(installed: Path) -> None:
    """`make serve` calls `.venv/bin/gateway`, which is not on the PATH."""
    assert ".venv/bin/gateway" == as_typed(".venv/bin/gateway", "python")
    assert "'/a folder/gateway'" == as_typed("/a folder/gateway", "python")


def test_what_the_shell_found_is_called_by_its_name(installed: Path) -> None:
    assert "gateway" == as_typed(str(installed), "python")


def test_a_module_is_called_through_its_interpreter() -> None:
    assert ".venv/bin/python -m gateway" == as_typed("/srv/gateway/__main__.py", ".venv/bin/python")
