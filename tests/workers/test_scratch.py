"""A launch's own temporary folder: private, empty, and never too deep for the engine's sockets."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.workers.scratch import make_scratch, remove_scratch

LAUNCH = "0123456789abcdef"


@pytest.fixture
def short() -> Iterator[Path]:
    folder = Path("/tmp") / f"gw-{os.getpid()}"
    folder.mkdir()
    yield folder
    remove_scratch(folder)


def fits(folder: Path) -> bool:
    """May the engine bind a socket there?"""
    return len(bytes(folder / str(uuid.uuid4()))) <= 107


def test_it_lies_with_the_other_runtime_files(short: Path) -> None:
    """Private, empty even where a killed launch of the same id left something, gone when it is removed."""
    left = short / "run" / "tmp-01234567"
    left.mkdir(parents=True)
    (left / "old").touch()
    folder = make_scratch(short / "run", LAUNCH, {})
    assert left == folder
    assert [] == os.listdir(folder)
    assert 0o700 == folder.stat().st_mode & 0o777
    (folder / "below").mkdir()
    remove_scratch(folder)
    remove_scratch(folder)
    assert not folder.exists()


@pytest.mark.parametrize("deep_temporary", [False, True])
def test_where_paths_are_deep_it_lies_elsewhere(tmp_path: Path, short: Path, deep_temporary: bool) -> None:
    """In TMPDIR, or where that is too deep as well in /tmp: vLLM would not start."""
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    folder = make_scratch(deep, LAUNCH, {"TMPDIR": str(deep if deep_temporary else short)})
    try:
        assert fits(folder)
        assert (Path("/tmp") if deep_temporary else short) == folder.parent
        assert 0o700 == folder.stat().st_mode & 0o777
        assert [] == os.listdir(deep)
    finally:
        remove_scratch(folder)
