"""A launch's own temporary folder: private and empty."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.workers.scratch import make_scratch, remove_scratch


def test_it_lies_with_the_other_runtime_files(tmp_path: Path) -> None:
    """
    Private, empty even where a killed launch of the same id left something, gone when it is removed; and not made in a
    directory that nobody owns.
    """
    left = tmp_path / "run" / "tmp-01234567"
    left.mkdir(parents=True)
    (left / "old").touch()
    folder = make_scratch(tmp_path / "run", "0123456789abcdef")
    assert left == folder
    assert [] == os.listdir(folder)
    assert 0o700 == folder.stat().st_mode & 0o777
    with pytest.raises(FileNotFoundError):
        make_scratch(tmp_path / "gone", "0123456789abcdef")
    (folder / "below").mkdir()
    remove_scratch(folder)
    remove_scratch(folder)
    assert not folder.exists()
