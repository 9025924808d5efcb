"""Where sockets lie: private, short enough, and nothing of a killed supervisor's left, whenever it was killed."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from gateway.control.runtime_dir import LONGEST_SOCKET_NAME_BYTES, MAX_SOCKET_PATH_BYTES, runtime_directory
from gateway.control.sockets import listen_unix
from gateway.control.state_dir import StateDir, held
from gateway.errors import EnvironmentProblem
from gateway.workers.scratch import make_scratch


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for a state directory with sockets in it."""
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as folder:
        yield Path(folder)


PROGRAM = """
import os, sys
from pathlib import Path
from gateway.control.runtime_dir import runtime_directory
from gateway.control.state_dir import StateDir

root, *keep = map(Path, sys.argv[1:])
with runtime_directory(StateDir(root), keep=keep) as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), 9)
"""


def entered_and_killed(state: StateDir, *, keep: Collection[Path] = ()) -> Path:
    """The runtime directory of an owner that never leaves its block."""
    argv = [sys.executable, "-c", PROGRAM, str(state.root), *map(str, keep)]
    ended = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    assert -9 == ended.returncode, ended.stderr
    return Path(ended.stdout.decode().strip())


def test_a_socket_path_longer_than_the_system_allows_goes_elsewhere(tmp_path: Path) -> None:
    """sockaddr_un holds about a hundred bytes; the private directory that replaces the path is gone afterwards."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    with held(deep) as state, runtime_directory(state) as run:
        path = run / "admin.sock"
        with listen_unix(str(path)), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        mode = stat.S_IMODE(run.stat().st_mode)

    assert 0o700 == mode
    assert deep not in run.parents
    assert not run.exists()


def test_sockets_of_a_killed_owner_are_removed_by_the_next(tmp_path: Path, short: Path) -> None:
    """Wherever they were: beside the state, or in the private directory that replaces it."""
    for root in (short / "state", tmp_path / ("d" * 100)):
        with held(root) as state:
            first = entered_and_killed(state)
            (first / "old.sock").touch()
            (first / "tmp-01234567").mkdir()
            with runtime_directory(state) as second:
                assert [] == list(second.iterdir())
            assert not first.exists()
            assert not second.exists()
            assert not os.path.lexists(root / "run")


def test_an_owner_killed_before_it_answered_leaves_no_directory_behind(tmp_path: Path) -> None:
    """Nor do many in a row: each uses what the one before left."""
    with held(tmp_path / ("d" * 100)) as state:
        left = {entered_and_killed(state) for _ in range(3)}
        assert 1 == len(left)
        with runtime_directory(state):
            pass
    assert not left.pop().exists()


def test_what_workers_go_on_using_is_kept_over_several_owners(tmp_path: Path) -> None:
    """Also when an owner was killed before it answered, and gone with the last one."""
    with held(tmp_path / ("d" * 100)) as state:
        first = entered_and_killed(state)
        (first / "w.sock").touch()
        (first / "admin.sock").touch()
        for _ in range(2):
            assert first == entered_and_killed(state, keep=[first / "w.sock"])
            assert [first / "w.sock"] == list(first.iterdir())
        with runtime_directory(state, keep=[first / "w.sock"]) as last:
            assert first == last
    assert not first.exists()


def test_a_state_directory_that_lies_less_deep_now_takes_its_sockets_back(tmp_path: Path, short: Path) -> None:
    """What a killed owner has left elsewhere is removed, or used as long as workers do."""
    deep, near = tmp_path / ("d" * 100), short / "state"
    with held(deep) as state:
        first = entered_and_killed(state)
        (first / "w.sock").touch()
    deep.rename(near)
    with held(near) as state:
        assert first == entered_and_killed(state, keep=[first / "w.sock"])
        with runtime_directory(state) as run:
            assert near / "run" == run
            assert not run.is_symlink()
    assert not first.exists()
    near.rename(deep)
    (deep / "run").mkdir()
    (deep / "run" / "old.sock").touch()
    with held(deep) as state, runtime_directory(state) as run:
        assert [] == list(run.iterdir())
        assert deep not in run.parents


@pytest.mark.parametrize("kind", ["foreign name", "file", "missing"])
def test_only_our_own_kind_of_directory_is_used_and_removed(tmp_path: Path, short: Path, kind: str) -> None:
    """Whatever the link names, what is no directory of ours stays as it is."""
    victim = tmp_path / ("precious" if kind == "foreign name" else "gateway-run-0")
    if kind == "foreign name":
        victim.mkdir()
        (victim / "file").touch()
    elif kind == "file":
        victim.touch()
    for root in (short / "state", tmp_path / ("d" * 100)):
        with held(root) as state:
            (state.root / "run").symlink_to(victim)
            with runtime_directory(state) as run:
                assert victim not in (run, *run.parents)
                assert run.is_dir()

    assert (kind != "missing") == victim.exists()
    assert kind != "foreign name" or (victim / "file").exists()


def test_a_directory_that_somebody_else_made_first_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others can write below the system's temporary directory; the name is drawn again."""
    foreign = Path(tempfile.gettempdir()) / f"gateway-run-{os.getpid():08x}"
    foreign.mkdir()
    try:
        draws = iter([foreign.name.removeprefix("gateway-run-"), "another0"])
        with held(tmp_path / ("d" * 100)) as state:
            monkeypatch.setattr("secrets.token_hex", lambda size: next(draws, "length"))
            monkeypatch.setattr("gateway.control.runtime_dir._too_deep", lambda folder: folder.name == "run")
            with runtime_directory(state) as run:
                assert "gateway-run-another0" == run.name
        assert foreign.is_dir()
    finally:
        foreign.rmdir()


def test_a_temporary_directory_that_is_deep_as_well_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket can be bound under every TMPDIR, and so can those of the engine below it."""
    deep = tmp_path / ("t" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with held(deep / "state") as state, runtime_directory(state) as run:
        with listen_unix(str(run / "admin.sock")):
            pass
        longest = make_scratch(run, "0123456789abcdef") / str(uuid.uuid4())
        assert len(os.fsencode(longest)) <= 107
    assert [deep / "state"] == list(deep.iterdir())


def test_a_scratch_folder_fits_below_the_deepest_runtime_directory(tmp_path: Path) -> None:
    """vLLM does not start where its sockets' paths are too long."""
    deepest = Path("/" + "r" * (MAX_SOCKET_PATH_BYTES - LONGEST_SOCKET_NAME_BYTES - 1))
    assert len(os.fsencode(deepest / "tmp-01234567" / str(uuid.uuid4()))) <= 107


def test_a_temporary_directory_that_cannot_be_written_is_told_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, no traceback."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with (
        held(tmp_path / ("d" * 100)) as state,
        pytest.raises(EnvironmentProblem, match=r"/nowhere.*TMPDIR"),
        runtime_directory(state),
    ):
        pass
