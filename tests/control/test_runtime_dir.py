"""Where sockets lie: private, short enough, and nothing of a killed supervisor's left, whenever it was killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from gateway.control.runtime_dir import LONGEST_PATH_BYTES, MAX_SOCKET_PATH_BYTES, runtime_directory
from gateway.control.sockets import listen_unix
from gateway.control.state_dir import StateDir, held
from gateway.errors import EnvironmentProblem
from gateway.workers.scratch import make_scratch

PROGRAM = """
import os, sys, tempfile
from pathlib import Path
from gateway.control.runtime_dir import runtime_directory
from gateway.control.state_dir import StateDir

root, tempfile.tempdir, step, *keep = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), 9)
if step:
    setattr(os, step, die)
with runtime_directory(StateDir(Path(root)), keep=keep) as folder:
    print(folder, flush=True)
    die()
"""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a path short enough for sockets in a state directory in it; `t` in it is for temporary ones."""
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as folder:
        (Path(folder) / "t").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", f"{folder}/t")
        yield Path(folder)


@pytest.fixture
def deep(short: Path) -> Path:
    """A state directory that is too deep for sockets."""
    return short / ("d" * 100)


def entered_and_killed(state: StateDir, *, keep: Collection[str] = (), step: str = "") -> Path:
    """The runtime directory of an owner that never leaves its block, or never enters it: that is killed at the step."""
    argv = [sys.executable, "-c", PROGRAM, str(state.root), tempfile.gettempdir(), step, *keep]
    ended = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    assert -signal.SIGKILL == ended.returncode, ended.stderr
    return Path(ended.stdout.decode().strip())


def temporaries(short: Path) -> list[Path]:
    """What there is under the system's temporary directory."""
    return list((short / "t").iterdir())


def test_a_socket_path_longer_than_the_system_allows_goes_elsewhere(short: Path, deep: Path) -> None:
    """sockaddr_un holds about a hundred bytes; the private directory that replaces the path is gone afterwards."""
    with held(deep) as state, runtime_directory(state) as run:
        path = run / "admin.sock"
        with listen_unix(str(path)), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        mode = stat.S_IMODE(run.stat().st_mode)
        assert [run] == temporaries(short)

    assert 0o700 == mode
    assert deep not in run.parents
    assert [] == temporaries(short)
    assert not os.path.lexists(deep / "run")


def test_sockets_of_a_killed_owner_are_removed_by_the_next(short: Path, deep: Path) -> None:
    """Wherever they were: beside the state, or in the private directory that replaces it."""
    for root in (short / "state", deep):
        with held(root) as state:
            first = entered_and_killed(state)
            (first / "old.sock").touch()
            (first / "tmp-01234567").mkdir()
            with runtime_directory(state) as second:
                assert [] == list(second.iterdir())
            assert not first.exists()
            assert not second.exists()
            assert not os.path.lexists(root / "run")


@pytest.mark.parametrize("step", ["symlink", "mkdir", ""])
def test_an_owner_killed_at_any_step_leaves_no_directory_behind(short: Path, deep: Path, step: str) -> None:
    """Nor do many in a row."""
    with held(deep) as state:
        for _ in range(3):
            entered_and_killed(state, step=step)
            assert len(temporaries(short)) <= 1
        with runtime_directory(state) as run:
            assert [run] == temporaries(short)
    assert [] == temporaries(short)


def test_what_workers_go_on_using_is_kept_over_several_owners(short: Path, deep: Path) -> None:
    """Also when an owner was killed before it answered, and gone with the last one."""
    with held(deep) as state:
        first = entered_and_killed(state)
        (first / "w.sock").touch()
        (first / "admin.sock").touch()
        for _ in range(2):
            assert first == entered_and_killed(state, keep=["w.sock"])
            assert [first / "w.sock"] == list(first.iterdir())
        with runtime_directory(state, keep=["w.sock"]) as last:
            assert first == last
    assert [] == temporaries(short)


def test_a_state_directory_that_was_moved_keeps_what_workers_use(short: Path, deep: Path) -> None:
    """Until they have ended; then its sockets lie where they would in a new one. Names stay, whatever the path."""
    near = short / "state"
    with held(deep) as state:
        first = entered_and_killed(state)
        (first / "w.sock").touch()
    deep.rename(near)
    with held(near) as state:
        assert first == entered_and_killed(state, keep=["w.sock"])
        assert near / "run" == entered_and_killed(state)
        assert [] == temporaries(short)
        assert not (near / "run").is_symlink()
        (near / "run" / "tmp-w").mkdir()
        (near / "run" / "old.sock").touch()
    near.rename(deep)
    with held(deep) as state:
        assert deep / "run" == entered_and_killed(state, keep=["tmp-w"])
        assert [deep / "run" / "tmp-w"] == list((deep / "run").iterdir())
        with runtime_directory(state) as run:
            assert [run] == temporaries(short)
            assert [] == list(run.iterdir())


def foreign_name(victim: Path) -> Path:
    victim.mkdir()
    (victim / "file").touch()
    return victim


def somebody_elses_kind(victim: Path) -> Path:
    victim = victim.with_name("gateway-run-0-0000")
    victim.mkdir()
    return victim


def below_a_file(victim: Path) -> Path:
    victim.touch()
    return victim / "folder"


def missing(victim: Path) -> Path:
    return victim


@pytest.mark.parametrize("make", [foreign_name, somebody_elses_kind, below_a_file, missing])
def test_only_a_directory_that_we_made_is_used_and_removed(
    short: Path, deep: Path, make: Callable[[Path], Path]
) -> None:
    """Whatever the link names stays as it is, and keeps nobody from starting."""
    leads_to = make(short / "victim")
    before = sorted(short.rglob("*"))
    for root in (short / "state", deep):
        with held(root) as state:
            (state.root / "run").symlink_to(leads_to)
            with runtime_directory(state) as run:
                assert leads_to not in (run, *run.parents)
                assert run.is_dir()
        shutil.rmtree(root)

    assert before == sorted(short.rglob("*"))


def test_a_directory_of_another_user_is_not_used(short: Path, deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours was removed by a cleaner of temporary files, and somebody made one of its name."""
    with held(deep) as state:
        first = entered_and_killed(state)
        with monkeypatch.context() as patched:
            patched.setattr(os, "geteuid", lambda: first.stat().st_uid + 1)
            with runtime_directory(state) as run:
                assert first != run
        assert first.is_dir()


def test_a_copied_state_directory_leaves_the_first_ones_directory_alone(short: Path, deep: Path) -> None:
    """It has the same link."""
    with held(deep) as state, runtime_directory(state) as run:
        (run / "w.sock").touch()
        copy = deep.with_name("c" * 100)
        shutil.copytree(deep, copy, symlinks=True)
        with held(copy) as copied, runtime_directory(copied) as second:
            assert run != second
        assert [run / "w.sock"] == list(run.iterdir())


def test_a_name_that_somebody_else_has_taken_is_drawn_again(
    short: Path, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others can write below the system's temporary directory."""
    draws = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(draws))
    with held(deep) as state, runtime_directory(state) as taken:
        (deep / "run").unlink()
        with runtime_directory(state) as run:
            assert [True, True] == [taken.name.endswith("-aaaa"), run.name.endswith("-bbbb")]
        assert [taken] == temporaries(short)


def test_what_cannot_be_removed_is_found_by_the_next(short: Path, deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could not be ended still writes into its temporary directory."""
    with held(deep) as state:
        with monkeypatch.context() as patched, runtime_directory(state) as first:
            (first / "w.sock").touch()
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        assert first.exists()
        with runtime_directory(state) as second:
            assert (first, []) == (second, list(second.iterdir()))
    assert [] == temporaries(short)


def test_a_temporary_directory_that_is_deep_as_well_is_passed_over(
    short: Path, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket can be bound whatever TMPDIR is."""
    elsewhere = short / ("t" * 100)
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    with held(deep) as state, runtime_directory(state) as run:
        assert Path("/tmp") == run.parent
        with listen_unix(str(run / "admin.sock")):
            pass
    assert [] == list(elsewhere.iterdir())
    assert not run.exists()


@pytest.mark.parametrize("bytes_more", [0, 1])
def test_the_longest_socket_fits_below_the_deepest_directory(short: Path, bytes_more: int) -> None:
    """vLLM does not start where the paths of those that it makes in its TMPDIR are too long."""
    wanted = LONGEST_PATH_BYTES + bytes_more - len(os.fsencode(short)) - len("//run")
    root = short / ("s" * wanted)
    with held(root) as state, runtime_directory(state) as run:
        assert (root / "run" == run) == (bytes_more == 0)
        for socket_path in (
            make_scratch(run, "0123456789abcdef") / str(uuid.uuid4()),
            run / "01234567.sock",
            run / "admin.sock",
        ):
            assert len(os.fsencode(socket_path)) <= MAX_SOCKET_PATH_BYTES
            with listen_unix(str(socket_path)):
                pass


def test_what_keeps_the_directory_from_being_made_is_told(
    short: Path, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with the path and the variable, no traceback."""
    with held(short / "state") as state:
        (state.root / "run").touch()
        with pytest.raises(EnvironmentProblem, match=r"/state/run'.*GATEWAY_STATE_DIR"), runtime_directory(state):
            pass
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with held(deep) as state:
        with pytest.raises(EnvironmentProblem, match=r"/nowhere/.*GATEWAY_STATE_DIR"), runtime_directory(state):
            pass
        assert not os.path.lexists("/nowhere")
