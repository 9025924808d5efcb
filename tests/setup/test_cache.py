"""What the cache holds, who uses it, and what is removed of it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from gateway.errors import EnvironmentProblem
from gateway.setup import completion, users
from gateway.setup.builds import BUILDS
from gateway.setup.cache import Entry, Use, disk_bytes, look, remove
from gateway.setup.completion import finish, finished
from gateway.setup.engine import engine_folder
from gateway.setup.model import default_model_folder
from gateway.setup.users import Holds, without_users
from tests.setup.conftest import FakeMachine

MIB = 1024 * 1024
MAPS_A_FILE = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=1); f.close()\n"
WAITS = "print('here', flush=True); input()"


def built(folder: Path, *, complete: bool = True) -> Path:
    """A folder as set-up leaves it: a file, its marker, lock and log beside it."""
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(os.urandom(MIB))
    folder.with_name(folder.name + ".lock").touch()
    folder.with_name(folder.name + ".log").write_bytes(b"x" * MIB)
    if complete:
        finish(folder, folder.name, {})
    return folder


def uses(cache: Path) -> dict[str, Use]:
    """By name."""
    return {entry.path.name: entry.use for entry in look(cache)}


def entry_of(folder: Path) -> Entry:
    (found,) = (entry for entry in look(folder.parents[1]) if entry.path == folder)
    return found


@contextmanager
def program(text: str, *arguments: str) -> Iterator[int]:
    """A Python program that has begun and waits; its process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", text + WAITS, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"here\n" == process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.communicate(b"\n", 10)


def test_every_entry_is_told_with_its_size_and_what_it_is_for(tmp_path: Path) -> None:
    """Looking changes nothing. What is not ours, or every release's, is never among what may go."""
    ours = [built(engine_folder(build, tmp_path)).name for build in BUILDS]
    ours.append(built(default_model_folder(tmp_path)).name)
    old = built(tmp_path / "engines" / "cpu-0.1.0-py311-linux-x86_64-0")
    built(tmp_path / "engines" / "cuda13-0.1.0-py311-linux-x86_64-0", complete=False)
    built(tmp_path / "models" / "old-model-0")
    built(tmp_path / "models" / "newer-model-0.partial", complete=False)
    (tmp_path / "models" / "newer-model-0.lock").touch()
    (tmp_path / "engines" / "my-own").mkdir()
    (tmp_path / "torchinductor").mkdir()
    before = sorted(tmp_path.rglob("*"))
    entries = look(tmp_path)

    assert {
        **dict.fromkeys(ours, Use.THIS_RELEASE),
        old.name: Use.NONE,
        "cuda13-0.1.0-py311-linux-x86_64-0": Use.UNFINISHED,
        "old-model-0": Use.NONE,
        "newer-model-0.partial": Use.UNFINISHED,
        "my-own": Use.FOREIGN,
        "torchinductor": Use.SHARED,
    } == {entry.path.name: entry.use for entry in entries}
    assert {Use.NONE, Use.UNFINISHED} == {use for use in Use if use.removable}
    assert 2 * MIB <= entry_of(old).size_bytes <= 2 * MIB + 64 * 1024
    assert before == sorted(tmp_path.rglob("*"))


def test_no_cache_is_an_empty_one(tmp_path: Path) -> None:
    """Nor is one made by looking."""
    assert () == look(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_file_with_two_names_is_counted_once_and_a_link_not_followed(tmp_path: Path) -> None:
    """Installers link files instead of copying them; an operator may have moved a folder to another disk."""
    (tmp_path / "elsewhere").write_bytes(os.urandom(MIB))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "one").write_bytes(os.urandom(MIB))
    os.link(folder / "one", folder / "two")
    (folder / "three").symlink_to(tmp_path / "elsewhere")

    assert MIB <= disk_bytes(folder) <= MIB + 64 * 1024


def test_removing_takes_folder_and_log_and_nothing_else(tmp_path: Path) -> None:
    """The lock stays: somebody may be about to take it."""
    old, other = built(tmp_path / "engines" / "old"), built(tmp_path / "engines" / "other")

    assert remove(entry_of(old))
    assert ["old.lock", "old.users", "other", "other.lock", "other.log"] == sorted(
        path.name for path in old.parent.iterdir()
    )
    assert (other / "weights").exists()


def test_what_is_built_beside_goes_without_the_log_of_what_is_finished(tmp_path: Path) -> None:
    """An interruption after the last rename leaves the folder beside; the finished one is not touched."""
    model = built(tmp_path / "models" / "model")
    beside = built(tmp_path / "models" / "model.partial", complete=False)

    assert remove(entry_of(beside))
    assert not beside.exists()
    assert finished(model, model.name) is not None
    assert model.with_name("model.log").exists()


def test_a_link_goes_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    """Whoever put it there may have other plans with it."""
    elsewhere = built(tmp_path / "disk" / "old")
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "old").symlink_to(elsewhere)

    remove(Entry(tmp_path / "engines" / "old", 0, Use.NONE))

    assert (elsewhere / "weights").exists()
    assert not (tmp_path / "engines" / "old").is_symlink()


def test_what_was_finished_since_it_was_shown_stays(tmp_path: Path) -> None:
    """The question waits for an answer; meanwhile somebody builds this release's engine to its end."""
    folder = built(engine_folder(BUILDS[0], tmp_path), complete=False)
    shown = entry_of(folder)
    finish(folder, folder.name, {})

    assert Use.UNFINISHED is shown.use
    assert not remove(shown)
    assert (folder / "weights").exists()


def test_a_linked_folder_is_not_ours_to_remove(tmp_path: Path) -> None:
    """Moved to another disk by somebody: taking the link away would leave gigabytes that nobody sees."""
    elsewhere = built(tmp_path / "disk" / "old-0")
    (tmp_path / "cache" / "engines").mkdir(parents=True)
    (tmp_path / "cache" / "engines" / "old-0").symlink_to(elsewhere)

    assert {"old-0": Use.FOREIGN} == uses(tmp_path / "cache")


def test_what_another_user_locks_is_shown_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built by root, looked at by the service's user: who builds and uses it cannot be seen."""
    folder = built(tmp_path / "engines" / "old-0")
    opened = os.open

    def refused(path: Path, *given: Any, **options: Any) -> int:
        if str(path).endswith(".lock"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *given, **options)

    monkeypatch.setattr(os, "open", refused)

    assert {folder.name: Use.FOREIGN} == uses(tmp_path)


def test_what_a_gateway_uses_stays_until_the_last_has_ended(tmp_path: Path) -> None:
    """Two of them, of whatever release; one that began after we looked counts too."""
    old = built(tmp_path / "engines" / "old")
    seen = entry_of(old)
    with Holds(tmp_path) as first:
        first.hold(old / "bin" / "python")
        with Holds(tmp_path) as second:
            second.hold(old)
            second.hold(old)
        in_use = uses(tmp_path)
        removed = remove(seen)

    assert {"old": Use.A_GATEWAY} == in_use
    assert not removed
    assert finished(old, "old") is not None
    assert {"old": Use.NONE} == uses(tmp_path)
    assert remove(seen)


def test_a_gateway_that_starts_waits_for_the_end_of_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would else find the folder, and lose it. It says what it waits for, and then finds none."""
    old = built(tmp_path / "engines" / "old")
    seen, said, found = entry_of(old), SimpleQueue[str](), SimpleQueue[bool]()
    removing = shutil.rmtree

    def start() -> None:
        with Holds(tmp_path, lambda progress: said.put(progress.detail)) as holds:
            holds.hold(old)
            found.put(old.exists())

    starting = Thread(target=start)

    def observed(path: Path, *arguments: Any) -> None:
        starting.start()
        assert f"{old} is being removed" == said.get(timeout=10)
        removing(path, *arguments)

    monkeypatch.setattr(completion.shutil, "rmtree", observed)
    removed = remove(seen)
    starting.join(10)

    assert removed
    assert found.get(timeout=10) is False
    assert said.empty()


@pytest.mark.parametrize("path", ["/usr/bin/python3", "{cache}", "{cache}/engines", "{cache}/torchinductor/x"])
def test_what_is_not_a_folder_of_ours_is_not_held(tmp_path: Path, path: str) -> None:
    """An operator's own interpreter, for example; nothing is written for it."""
    with Holds(tmp_path) as holds:
        holds.hold(Path(path.format(cache=tmp_path)))

        assert [] == list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As part of an image. A full disk is another thing: then it is said."""

    def failing(code: int) -> None:
        def opened(*arguments: object) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(users.os, "open", opened)

    with Holds(tmp_path) as holds:
        failing(errno.EROFS)
        holds.hold(tmp_path / "engines" / "one")
        failing(errno.ENOSPC)
        with pytest.raises(EnvironmentProblem, match="GATEWAY_CACHE_DIR"):
            holds.hold(tmp_path / "engines" / "one")


def test_a_users_file_of_another_user_is_locked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an administrator, say, who has pruned this cache before."""
    old = built(tmp_path / "engines" / "old")
    with without_users(old) as free:
        assert free
    opened = os.open

    def not_ours(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, mode)

    monkeypatch.setattr(users.os, "open", not_ours)
    with Holds(tmp_path) as holds:
        holds.hold(old)

        assert {"old": Use.A_GATEWAY} == uses(tmp_path)


@pytest.mark.integration
def test_what_a_process_was_started_with_stays(tmp_path: Path) -> None:
    """Workers that outlive a killed gateway hold no lock. A neighbour with a longer name is not meant."""
    old, longer = built(tmp_path / "models" / "old"), built(tmp_path / "models" / "old-2")
    seen = entry_of(old)
    with program("", f"--model={old}") as pid:
        found, neighbour = entry_of(old), entry_of(longer)
        removed = remove(seen)

    assert (Use.PROCESSES, (pid,)) == (found.use, found.pids)
    assert Use.NONE is neighbour.use
    assert not removed
    assert remove(seen)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process has in memory")
def test_what_a_process_has_in_memory_stays(tmp_path: Path) -> None:
    """Also by a way through a link, and when the process has given itself another title, as vLLM's engines do."""
    old = built(tmp_path / "disk" / "engines" / "old")
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    (tmp_path / "else").symlink_to(old / "weights")
    with program(MAPS_A_FILE, str(tmp_path / "else")) as pid:
        found = entry_of(tmp_path / "cache" / "engines" / "old")

    assert (Use.PROCESSES, (pid,)) == (found.use, found.pids)


@pytest.mark.integration
def test_what_is_being_built_stays_and_is_finished(fake: FakeMachine) -> None:
    """The builder holds the lock from before its first step to its marker, and meets no removal."""
    gate, events = fake.fifo("gate"), fake.fifo("events")
    try:
        builder = fake.start("engine")
        while b"gate" not in os.read(events, 4096):
            pass
        (found,) = (entry for entry in look(fake.folder) if entry.use is not Use.SHARED)
        removed = remove(Entry(found.path, 0, Use.UNFINISHED))
        os.write(gate, b"go\n")
        builder.wait(30)
    finally:
        os.close(gate)
        os.close(events)

    assert (Use.BEING_BUILT, (builder.pid,)) == (found.use, found.pids)
    assert not removed
    assert fake.finished("engine")


@pytest.mark.parametrize("what", ["engine", "model"])
def test_set_up_holds_what_it_looks_for_before_it_looks(fake: FakeMachine, what: str) -> None:
    """Found or built: between the look and a later hold somebody could have removed it."""
    seen: list[tuple[str, bool]] = []

    def hold(path: Path) -> None:
        seen.append((path.parent.name, path.exists()))

    fake.build(what, hold=hold)
    fake.build(what, hold=hold)

    assert [(f"{what}s", False), (f"{what}s", True)] == seen


def test_a_removal_interrupted_in_the_middle_leaves_nothing_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And both locks are free: the next one removes the rest."""
    old = built(tmp_path / "engines" / "old")

    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    whole = entry_of(old)
    with monkeypatch.context() as patch:
        patch.setattr(completion.shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove(whole)
    half = uses(tmp_path)

    assert {"old": Use.UNFINISHED} == half
    assert remove(entry_of(old))
    assert not old.exists()


def test_a_cache_that_cannot_be_read_is_said_with_its_path(tmp_path: Path) -> None:
    """With what is wrong, and not with what would be removed."""
    built(tmp_path / "engines" / "old")
    (tmp_path / "engines" / "old.users").symlink_to("old.users")  # a loop: nothing can be opened there

    with pytest.raises(EnvironmentProblem, match=f"{tmp_path} cannot be read"):
        look(tmp_path)


def test_nobody_begins_to_use_what_has_no_users(tmp_path: Path) -> None:
    """The answer holds as long as the block."""
    old = built(tmp_path / "engines" / "old")
    with without_users(old) as free, without_users(old) as again:
        assert (True, False) == (free, again)
