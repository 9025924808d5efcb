"""`gateway cache` as an operator types it: what it shows, what it asks, what it leaves."""

from __future__ import annotations

import os
import pty
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gateway.setup.builds import CPU
from gateway.setup.completion import finish
from gateway.setup.engine import engine_folder
from tests.cli.test_commands import Home, one_line
from tests.e2e.served import Served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

FLEET = """
models:
  m:
    model: simulated
engines:
  default:
    python: {python}
    command: ["{{python}}", "-m", "loadtest.servers.simulator"]
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """With an engine of this release and two of earlier ones in its cache."""
    made = Home(tmp_path)
    for folder in (engine_folder(CPU, cache(made)), engines(made) / "old", engines(made) / "older"):
        (folder / "bin").mkdir(parents=True)
        (folder / "weights").write_bytes(os.urandom(3_000_000))
        folder.with_name(folder.name + ".lock").touch()
        finish(folder, folder.name, {})
    return made


def cache(home: Home) -> Path:
    return home.root / "cache"


def engines(home: Home) -> Path:
    return cache(home) / "engines"


def folders(home: Home) -> set[str]:
    return {path.name for path in engines(home).iterdir() if path.is_dir()}


def test_looking_shows_sizes_and_uses_and_removes_nothing(home: Home) -> None:
    done = home.gateway("cache")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]

    assert 0 == done.returncode, done.stderr
    assert f"engines/{engine_folder(CPU, cache(home)).name} 3 MB used by this release" in lines
    assert "engines/old 3 MB not used" in lines
    assert "together 9 MB" in lines
    assert "gateway cache --prune removes what is not used: 6 MB" == lines[-1]
    assert 3 == len(folders(home))


def test_nothing_is_removed_without_an_answer_or_yes(home: Home) -> None:
    """A script that forgot it is told so; --yes alone means nothing."""
    assert "--yes" in one_line(home.gateway("cache", "--prune"), 2)
    assert "--prune" in one_line(home.gateway("cache", "--yes"), 2)
    assert 3 == len(folders(home))


def test_pruning_leaves_what_this_release_uses(home: Home) -> None:
    """Each removal is told; a second one finds nothing to do and asks nothing."""
    done = home.gateway("cache", "--prune", "--yes")
    again = home.gateway("cache", "--prune")

    assert (0, 0) == (done.returncode, again.returncode), done.stderr + again.stderr
    assert ["removed engines/old (3 MB)", "removed engines/older (3 MB)", "freed: 6 MB"] == done.stdout.splitlines()[
        -3:
    ]
    assert {engine_folder(CPU, cache(home)).name} == folders(home)
    assert "nothing is to be removed" == again.stdout.splitlines()[-1]


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("n", 3), ("", 3)])
def test_a_person_is_asked_and_no_answer_is_no(home: Home, answer: str, left: int) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    environ = {**os.environ, "GATEWAY_CACHE_DIR": str(cache(home))}
    process = psutil.Popen(
        [sys.executable, "-m", "gateway", "cache", "--prune"], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    said = b""
    with suppress(OSError):  # is how Linux says that the other end has closed
        while chunk := os.read(ours, 4096):
            said += chunk
    os.close(ours)

    assert 0 == process.wait(30), said
    assert b"Remove what is not used (6 MB)? [y/N]" in said
    assert left == len(folders(home))


def test_what_a_running_gateway_uses_stays_also_while_its_worker_is_stopped(home: Home) -> None:
    """It will start it again. When the gateway has ended, it goes."""
    python = engines(home) / "old" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (home.root / "fleet.yaml").write_text(FLEET.format(python=python))
    environ = {"GATEWAY_CACHE_DIR": str(cache(home))}
    with Served(["-c", str(home.root / "fleet.yaml")], home.root / "s", environ=environ) as served:
        served.wait_ready(within_s=60)
        stopped = home.gateway("workers", "stop", "m-0", GATEWAY_STATE_DIR=str(served.state))
        shown = home.gateway("cache")
        pruned = home.gateway("cache", "--prune", "--yes")

    assert 0 == stopped.returncode, stopped.stderr
    assert "engines/old 3 MB used by a running gateway" in " ".join(shown.stdout.split())
    assert ["removed engines/older (3 MB)", "freed: 3 MB"] == pruned.stdout.splitlines()[-2:]
    assert python.exists()
    assert 0 == home.gateway("cache", "--prune", "--yes").returncode
    assert not python.exists()
