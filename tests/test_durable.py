"""Files written all or nothing, by processes that may be killed and may be several."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.durable import PartialFile, remove_partials, write_atomically

DIE_AT = """
import fcntl, os, sys
from pathlib import Path
from gateway.durable import write_atomically
owner, step = {"flock": (fcntl, "flock")}.get(sys.argv[2], (os, sys.argv[2]))
setattr(owner, step, lambda *arguments: os.kill(os.getpid(), 9))
write_atomically(Path(sys.argv[1]), b"unfinished " * 1000)
"""
STEPS = ["flock", "fchmod", "fsync", "replace"]


def killed_at(step: str, path: Path) -> None:
    """A process that is killed when it comes to that system call while it writes `path`."""
    ended = subprocess.run([sys.executable, "-c", DIE_AT, str(path), step], check=False, timeout=60)
    assert -signal.SIGKILL == ended.returncode


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_the_file_is_private_and_whole(tmp_path: Path) -> None:
    """Whatever was there, and whatever the umask allows."""
    path = tmp_path / "file.json"
    path.write_bytes(b"old and longer")
    path.chmod(0o644)
    umask = os.umask(0o277)
    try:
        write_atomically(path, b"new")
    finally:
        os.umask(umask)

    assert b"new" == path.read_bytes()
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_writer_leaves_the_old_content_and_the_next_one_tidies_up(tmp_path: Path, step: str) -> None:
    """However many are killed, one unfinished file is there at most, and none after a write that ends."""
    path = tmp_path / "file.json"
    write_atomically(path, b"old")
    for _ in range(3):
        killed_at(step, path)
        assert b"old" == path.read_bytes()
        assert 2 >= len(names(tmp_path))
    write_atomically(path, b"new")

    assert b"new" == path.read_bytes()
    assert ["file.json"] == names(tmp_path)


def test_only_what_dead_writers_have_left_is_removed(tmp_path: Path) -> None:
    """Finished files and those of others stay, hidden or not, and so does what is being written."""
    write_atomically(tmp_path / "finished", b"1")
    others = [".hidden", ".x.partial", "x.0123abcd.partial", ".x.0123abcd.partial.txt"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".folder.0123abcd.partial").mkdir()
    (tmp_path / ".link.0123abcd.partial").symlink_to(tmp_path / ".hidden")
    with PartialFile(tmp_path / "living") as living:
        killed_at("replace", tmp_path / "unfinished")
        assert 1 == sum(name.startswith(".unfinished.") for name in names(tmp_path))
        remove_partials(tmp_path)
        living.file.write(b"2")
        living.put_in_place()

    left = [*others, ".folder.0123abcd.partial", ".link.0123abcd.partial", "finished", "living"]
    assert sorted(left) == names(tmp_path)
    assert [b"1", b"2"] == [(tmp_path / name).read_bytes() for name in ("finished", "living")]


def test_a_writer_whose_new_file_was_taken_for_a_dead_ones_draws_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its lock; whether it is gone already or is held by whoever is about to remove it."""
    lock, removed, held = fcntl.flock, list[str](), list[int]()

    def too_late(descriptor: int, operation: int) -> None:
        (unlocked,) = [name for name in names(tmp_path) if name.startswith(".")]
        if not removed:
            removed.append(unlocked)
            (tmp_path / unlocked).unlink()
        elif not held:
            held.append(os.open(tmp_path / unlocked, os.O_RDWR))
            lock(held[0], fcntl.LOCK_EX)
            (tmp_path / unlocked).rename(tmp_path / "about to go")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    write_atomically(tmp_path / "file", b"1")
    os.close(held[0])

    assert ["about to go", "file"] == names(tmp_path)
    assert b"1" == (tmp_path / "file").read_bytes()


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing(tmp_path: Path) -> None:
    """All or nothing, also when the new content cannot be put in place."""
    path = tmp_path / "file.json"
    write_atomically(path, b"1")
    blocked = tmp_path / "folder"
    (blocked / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_atomically(blocked, b"2")

    assert b"1" == path.read_bytes()
    assert ["file.json", "folder"] == names(tmp_path)


def test_a_writer_that_stands_still_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Stopped in the midst (Ctrl-Z, a hanging disk), it finishes later."""
    path = tmp_path / "file"
    with PartialFile(path) as standing:
        standing.file.write(b"late")
        write_atomically(path, b"meanwhile")
        assert b"meanwhile" == path.read_bytes()
        standing.put_in_place()
    assert b"late" == path.read_bytes()
    assert ["file"] == names(tmp_path)


def test_several_writers_of_one_path_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The content is one of theirs and whole at any moment, none fails, nothing is left."""
    path, wholes = tmp_path / "file", [bytes([65 + number]) * 100_000 for number in range(4)]
    write_atomically(path, wholes[0])
    done = threading.Event()

    def read() -> int:
        looks = 0
        while not done.is_set():
            assert path.read_bytes() in wholes
            looks += 1
        return looks

    def write(whole: bytes) -> None:
        for _ in range(25):
            write_atomically(path, whole)

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(write, whole) for whole in wholes]
        try:
            for writer in writers:
                writer.result(120)
        finally:
            done.set()
        assert reader.result(120) > 0
    assert path.read_bytes() in wholes
    assert ["file"] == names(tmp_path)
