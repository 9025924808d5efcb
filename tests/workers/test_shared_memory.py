"""Shared memory of dead processes is removed, and of nobody else."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.workers.shared_memory import SHARED, remove_segments, segments_of

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="this system has no /dev/shm")

HOLD = """
import mmap, sys
file = open(sys.argv[1], "r+b")
held = mmap.mmap(file.fileno(), 0)
if sys.argv[2] == "mapped":
    file.close()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def segment() -> Iterator[str]:
    """A segment as Python's multiprocessing makes them."""
    name = f"psm_{uuid.uuid4().hex[:8]}"
    path = SHARED / name
    path.write_bytes(b"0" * 4096)
    yield name
    path.unlink(missing_ok=True)


@contextmanager
def holder(name: str, how: str) -> Iterator[int]:
    """A process that has the segment mapped, with or without a descriptor."""
    command = [sys.executable, "-I", "-c", HOLD, str(SHARED / name), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        yield process.pid
        process.stdin.close()
        process.wait(10)


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_a_segment_belongs_to_who_has_it_and_outlives_nobody(segment: str, how: str) -> None:
    """Found while its holder lives, kept as long, removed afterwards."""
    with holder(segment, how) as pid:
        assert segment in segments_of([pid])
        assert () == remove_segments([segment])
        assert (SHARED / segment).exists()
    assert (segment,) == remove_segments([segment])
    assert not (SHARED / segment).exists()
    assert () == remove_segments([segment])


def test_what_others_share_is_kept(segment: str) -> None:
    """One of two holders ends."""
    with holder(segment, "mapped"):
        with holder(segment, "mapped") as pid:
            names = segments_of([pid])
        assert () == remove_segments(names)


def test_semaphores_are_found_under_their_own_name() -> None:
    """The kernel shows the name under which the C library made them, which is gone."""
    lock = multiprocessing.get_context("spawn").Lock()
    name = f"sem.{lock._semlock.name.strip('/')}"  # type: ignore[attr-defined]
    assert name in os.listdir(SHARED)
    assert name in segments_of([os.getpid()])
    assert () == remove_segments([name])


def test_only_known_kinds_are_named(tmp_path: Path) -> None:
    """A database's or a browser's shared memory is none of our business, mapped or not."""
    shared = tmp_path / "shm"
    shared.mkdir()
    (tmp_path / "proc" / "7").mkdir(parents=True)
    names = ("psm_a", "sem.mp-b", "vllm_offload_c.mmap", "PostgreSQL.1")
    for name in names:
        (shared / name).touch()
    lines = [f"7f00-7f01 rw-s 00000000 00:19 {(shared / name).stat().st_ino}   {shared}/x (deleted)" for name in names]
    lines.append("7f00-7f01 r--p 00000000 08:01 2   /lib/psm_no")
    lines.append("7f00-7f01 rw-p 00000000 00:00 0")
    (tmp_path / "proc" / "7" / "maps").write_text("\n".join(lines))
    assert {"psm_a", "sem.mp-b", "vllm_offload_c.mmap"} == segments_of([7], shared=shared, proc=tmp_path / "proc")
    assert frozenset() == segments_of([8], shared=shared, proc=tmp_path / "proc")


def test_another_users_segments_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can read the name need not be the owner."""
    (tmp_path / "psm_a").touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert () == remove_segments(["psm_a"], shared=tmp_path)
    assert (tmp_path / "psm_a").exists()
