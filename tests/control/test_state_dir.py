"""The state directory: one owner, private, and nothing stale."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.control.sockets import listen_unix
from gateway.control.state_dir import Endpoint, StateDir, held, holder_pid, runtime_directory
from gateway.durable import write_atomically
from gateway.errors import AlreadyRunning, ControlUnavailable, EnvironmentProblem

ENDPOINT = Endpoint(pid=7, socket="/tmp/x/admin.sock", public_url="http://127.0.0.1:1", admin_url="http://127.0.0.1:2")


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    """The message has the pid to stop and the variable to set; the first owner is not disturbed."""
    with held(tmp_path / "state") as state:
        expected = rf"pid {os.getpid()}\).*kill {os.getpid()}.*GATEWAY_STATE_DIR"
        with pytest.raises(AlreadyRunning, match=expected), held(tmp_path / "state"):
            pass
        assert os.getpid() == holder_pid(state.lock_file)

    assert holder_pid(state.lock_file) is None


def test_the_lock_ends_with_a_killed_owner(tmp_path: Path) -> None:
    """kill -9 leaves the lock file, and it means nothing: the next supervisor gets the directory."""
    program = (
        "import sys, time; from pathlib import Path; from gateway.control.state_dir import held\n"
        f"with held(Path({str(tmp_path / 'state')!r})):\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert owner.pid == holder_pid(tmp_path / "state" / "supervisor.lock")
        owner.kill()
        owner.wait()

        with held(tmp_path / "state") as state:
            assert state.records.is_dir()


def test_everything_is_private_to_the_owner(tmp_path: Path) -> None:
    """A directory that was open to others is closed; the token and the socket are 0600."""
    root = tmp_path / "state"
    root.mkdir(mode=0o755)
    with held(root) as state, runtime_directory(state) as run:
        token = state.admin_token()
        with listen_unix(str(run / "admin.sock")):
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (root, state.token_file, run / "admin.sock")]

    assert [0o700, 0o600, 0o600] == modes
    assert len(token) >= 32
    assert token == StateDir(root).admin_token(), "kept over restarts"


def test_a_directory_that_cannot_be_made_names_the_variable(tmp_path: Path) -> None:
    """A file in the way is one sentence, no traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="GATEWAY_STATE_DIR"), held(tmp_path / "file" / "state"):
        pass


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


def test_sockets_of_a_killed_owner_are_removed_by_the_next(tmp_path: Path) -> None:
    """Wherever they were: beside the state, or in the private directory that supervisor.json names."""
    deep = tmp_path / ("d" * 100)
    with held(deep) as state:
        left = runtime_directory(state)
        first = left.__enter__()
        (first / "admin.sock").touch()
        state.write_endpoint(Endpoint(pid=1, socket=str(first / "admin.sock"), public_url="", admin_url=""))
        # The first owner never leaves its block: it was killed.
        with runtime_directory(state) as second:
            assert not first.exists()
            assert first != second

    with held(tmp_path / "near") as near:
        (near.root / "run").mkdir()
        (near.root / "run" / "old.sock").touch()
        with runtime_directory(near) as run:
            assert [] == list(run.iterdir())
    left.gen.close()  # type: ignore[attr-defined]


def test_only_our_own_kind_of_directory_is_removed(tmp_path: Path) -> None:
    """supervisor.json is data: whatever it names, a foreign directory stays."""
    victim = tmp_path / "precious"
    victim.mkdir()
    with held(tmp_path / "state") as state:
        state.write_endpoint(Endpoint(pid=1, socket=str(victim / "admin.sock"), public_url="", admin_url=""))
        with runtime_directory(state):
            pass

    assert victim.is_dir()


def test_the_endpoint_is_believed_only_while_its_owner_lives(tmp_path: Path) -> None:
    """A file left by a killed supervisor is no running gateway."""
    state = StateDir(tmp_path / "state")
    with pytest.raises(ControlUnavailable, match="gateway up"):
        state.read_endpoint()
    with held(tmp_path / "state"):
        with pytest.raises(ControlUnavailable, match="preparing"):
            state.read_endpoint()
        state.write_endpoint(ENDPOINT)
        assert ENDPOINT == state.read_endpoint()
        state.endpoint_file.write_text("{")
        with pytest.raises(ControlUnavailable, match=r"supervisor\.json"):
            state.read_endpoint()
        state.write_endpoint(ENDPOINT)
    with pytest.raises(ControlUnavailable):
        state.read_endpoint()


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing(tmp_path: Path) -> None:
    """All or nothing, also when the new content cannot be put in place."""
    path = tmp_path / "file.json"
    write_atomically(path, json.dumps(1).encode())
    blocked = tmp_path / "folder"
    (blocked / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_atomically(blocked, b"2")

    assert b"1" == path.read_bytes()
    assert ["file.json", "folder"] == sorted(each.name for each in tmp_path.iterdir())
