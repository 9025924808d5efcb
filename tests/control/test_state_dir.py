"""The state directory: one owner, private, and nothing stale."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.control.runtime_dir import runtime_directory
from gateway.control.sockets import listen_unix
from gateway.control.state_dir import Endpoint, StateDir, held, holder_pid
from gateway.durable import PartialFile
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
    assert state.endpoint_file.exists(), "as after kill -9"
    with pytest.raises(ControlUnavailable, match="gateway up"):
        state.read_endpoint()
    with held(tmp_path / "state"), pytest.raises(ControlUnavailable, match="preparing"):
        state.read_endpoint()


def test_what_a_killed_owner_has_not_finished_is_gone_under_the_next(tmp_path: Path) -> None:
    """In the directory and those below; what somebody who lives is writing stays, and so does everything else."""
    with held(tmp_path / "state") as state:
        folders = (state.root, state.records, state.logs)
        for folder in folders:
            (folder / ".dead.0123abcd.partial").touch()
            (folder / ".hidden").touch()
    with PartialFile(state.keys_file) as written, held(tmp_path / "state"):
        written.put_in_place()
    assert state.keys_file.exists()
    for folder in folders:
        assert [".hidden"] == [path.name for path in folder.iterdir() if path.name.startswith(".")]
