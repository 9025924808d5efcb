"""Files written all or nothing, by processes that may be killed and may be several."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.durable import remove_partials, write_atomically

DIE_AT = """
import os, sys
from pathlib import Path
from gateway.durable import write_atomically
setattr(os, sys.argv[2], lambda *arguments: os.kill(os.getpid(), 9))
write_atomically(Path(sys.argv[1]), b"unfinished " * 1000)
"""
STEPS = ["fchmod", "ftruncate", "fsync", "replace"]


def killed_at(step: str, path: Path) -> None:
    """A process that is killed when it comes to that system call while it writes `path`."""
    ended = subprocess.run([sys.executable, "-c", DIE_AT, str(path), step], check=False, timeout=60)
    assert -signal.SIGKILL == ended.returncode


def test_the_file_is_private_and_whole(tmp_path: Path) -> None:
    """Whatever was there, and whatever the umask and a left partial file allow."""
    path = tmp_path / "file.json"
    path.write_bytes(b"old and longer")
    path.chmod(0o644)
    partial = tmp_path / ".file.json.partial"
    partial.write_bytes(b"much longer than what comes now")
    partial.chmod(0o644)
    write_atomically(path, b"new")

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
        assert 2 == len(list(tmp_path.iterdir()))
    write_atomically(path, b"new")

    assert b"new" == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_the_owner_of_a_folder_removes_unfinished_files_only(tmp_path: Path) -> None:
    """Finished ones and files of others stay, hidden or not."""
    write_atomically(tmp_path / "finished", b"1")
    (tmp_path / ".hidden").touch()
    (tmp_path / "visible.partial").touch()
    killed_at("replace", tmp_path / "unfinished")
    killed_at("fsync", tmp_path / "finished")
    remove_partials(tmp_path)

    assert [".hidden", "finished", "visible.partial"] == sorted(each.name for each in tmp_path.iterdir())
    assert b"1" == (tmp_path / "finished").read_bytes()


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing(tmp_path: Path) -> None:
    """All or nothing, also when the new content cannot be put in place."""
    path = tmp_path / "file.json"
    write_atomically(path, b"1")
    blocked = tmp_path / "folder"
    (blocked / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_atomically(blocked, b"2")

    assert b"1" == path.read_bytes()
    assert ["file.json", "folder"] == sorted(each.name for each in tmp_path.iterdir())


def test_a_link_in_place_of_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    """What it leads to keeps its content."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".file.partial").symlink_to(victim)
    with pytest.raises(OSError, match="partial"):
        write_atomically(tmp_path / "file", b"1")

    assert b"precious" == victim.read_bytes()


def test_several_writers_of_one_path_take_turns(tmp_path: Path) -> None:
    """Each content is whole at any moment, none fails, nothing is left; the last one is one of them."""
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
    assert [path] == list(tmp_path.iterdir())
    assert os.stat(path).st_nlink == 1
