"""What a gateway process makes of changes of the keys file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.clock import SystemClock
from gateway.keys import ApiKey, KeysFile, KeysWatch


class Watched:
    """A keys file, the watch on it, and everything the watch has said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = KeysFile(path, SystemClock())
        self.sets: list[list[str]] = []
        self.problems: list[str] = []
        self.watch = KeysWatch(path, self._took, self.problems.append)

    def _took(self, keys: tuple[ApiKey, ...]) -> None:
        self.sets.append([key.name for key in keys])


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "keys.json")


def test_without_a_file_nothing_is_said(watched: Watched) -> None:
    watched.watch.look()

    assert ([], []) == (watched.sets, watched.problems)


def test_every_change_is_taken_once(watched: Watched) -> None:
    """Made after the start, changed, emptied; a look in between costs nothing and says nothing."""
    watched.watch.look()
    watched.file.create("a")
    watched.watch.look()
    watched.watch.look()
    watched.file.create("b")
    watched.watch.look()
    watched.file.revoke("a")
    watched.file.revoke("b")
    watched.watch.look()

    assert [["a"], ["a", "b"], []] == watched.sets
    assert [] == watched.problems


def test_a_broken_file_is_reported_once_and_its_repair_is_taken(watched: Watched) -> None:
    watched.file.create("a")
    watched.watch.look()
    good = watched.path.read_bytes()
    watched.path.write_bytes(good[:-20])
    watched.watch.look()
    watched.watch.look()
    assert 1 == len(watched.problems)
    assert str(watched.path) in watched.problems[0]
    assert [["a"]] == watched.sets

    watched.path.write_bytes(good)
    watched.watch.look()
    assert [["a"], ["a"]] == watched.sets
    assert 1 == len(watched.problems)


def test_a_file_that_goes_is_reported_and_nothing_is_taken(watched: Watched) -> None:
    """Whoever removes the file has not thereby opened the gateway, nor closed it."""
    watched.file.create("a")
    watched.watch.look()
    watched.path.unlink()
    watched.watch.look()
    watched.watch.look()

    assert [["a"]] == watched.sets
    assert 1 == len(watched.problems)

    watched.file.create("b")
    watched.watch.look()
    assert [["a"], ["b"]] == watched.sets


def test_a_change_that_leaves_size_and_time_of_writing_alone_is_taken(watched: Watched) -> None:
    """An editor, or a restored backup, may set the time back; the file's own change time cannot be."""
    watched.file.create("aa")
    watched.watch.look()
    before = watched.path.stat()
    watched.path.write_bytes(watched.path.read_bytes().replace(b'"aa"', b'"bb"'))
    os.utime(watched.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    watched.watch.look()

    assert [["aa"], ["bb"]] == watched.sets


def test_a_path_that_cannot_be_looked_at_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    watched = Watched(tmp_path / "file" / "keys.json")
    watched.watch.look()
    watched.watch.look()

    assert 1 == len(watched.problems)
