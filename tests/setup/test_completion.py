"""Markers and the lock on their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.setup import completion
from gateway.setup.completion import MARKER, discard, exclusive, finish, finished


def test_a_folder_is_finished_for_the_key_it_was_finished_for(tmp_path: Path) -> None:
    """And for no other; without a marker for none."""
    assert finished(tmp_path, "key") is None

    finish(tmp_path, "key", {"version": "1"})

    assert {"version": "1"} == finished(tmp_path, "key")
    assert finished(tmp_path, "other") is None
    assert [MARKER] == [path.name for path in tmp_path.iterdir()]


def test_discarding_removes_the_marker_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted halfway, the rest must not look finished."""
    folder = tmp_path / "folder"
    folder.mkdir()
    finish(folder, "key", {})
    finished_at_removal: list[object] = []
    remove = shutil.rmtree

    def observed(path: Path, *arguments: Any) -> None:
        finished_at_removal.append(finished(folder, "key"))
        remove(path, *arguments)

    monkeypatch.setattr(completion.shutil, "rmtree", observed)
    discard(folder)

    assert [None] == finished_at_removal
    assert not folder.exists()


def test_discarding_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    """An operator may have put the cache on another disk."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("", encoding="utf-8")
    (tmp_path / "link").symlink_to(target)

    discard(tmp_path / "link")

    assert (target / "file").exists()
    assert not (tmp_path / "link").is_symlink()


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    """And its folder is created when it is not there; nobody is waited for."""
    lock = tmp_path / "new" / "lock"

    def never(holder: str) -> None:
        raise AssertionError(f"waited for {holder}")

    with pytest.raises(KeyError), exclusive(lock, never):
        raise KeyError
    with exclusive(lock, never):
        pass
