"""Every known failure of the list has a test named after it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CORPUS = json.loads((HERE / "corpus_ids.json").read_text())
EXCEPTIONS: dict[str, str] = {}
"""Ids without a test, with the reason; at most four, and none of the first priority."""


@pytest.mark.integration
def test_every_id_is_collected() -> None:
    """What pytest collects covers the list, but for what belongs to other parts and the written exceptions."""
    command = [sys.executable, "-m", "pytest", str(HERE), "--collect-only", "-q", "-p", "no:cacheprovider"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert collected.returncode == 0, collected.stdout[-2000:]
    found = {f"C{number}" for number in re.findall(r"::test_c(\d\d)_", collected.stdout)}
    expected = {entry["id"] for entry in CORPUS if "elsewhere" not in entry} - set(EXCEPTIONS)

    assert set() == expected - found
    assert set() == found - {entry["id"] for entry in CORPUS}
    assert set() == found & set(EXCEPTIONS)


def test_the_list_is_whole() -> None:
    """Ninety ids in order, each with a priority and a subject; what is tested elsewhere says where."""
    assert [f"C{number:02d}" for number in range(1, 91)] == [entry["id"] for entry in CORPUS]
    assert {"P0", "P1", "P2"} == {entry["priority"] for entry in CORPUS}
    assert all(entry["subject"] for entry in CORPUS)
    assert {"workers"} >= {entry["elsewhere"] for entry in CORPUS if "elsewhere" in entry}


def test_exceptions_are_few_and_minor() -> None:
    """At most four, with a reason each, and nothing of the first priority."""
    priorities = {entry["id"]: entry["priority"] for entry in CORPUS}

    assert len(EXCEPTIONS) <= 4
    assert all(EXCEPTIONS.values())
    assert "P0" not in [priorities[number] for number in EXCEPTIONS]
