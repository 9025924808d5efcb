"""System programs from PATH or unpacked; with a faked apt and dpkg."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import EnvironmentProblem
from gateway.setup.completion import MARKER
from gateway.setup.progress import SetupProgress
from gateway.setup.system import PROGRAMS, ensure_program, find_program

APT = """#!/bin/sh
case "$*" in
*--download-only*) [ ! -e "$FAKE_BROKEN" ] || { echo "E: Unable to locate package"; exit 100; }
  for argument; do case $argument in Dir::Cache=*) : >"${argument#Dir::Cache=}/archives/prometheus.deb" ;; esac; done ;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/bin" "$3/usr/lib/x86_64-linux-gnu/deep"
: >"$3/usr/lib/x86_64-linux-gnu/deep/libx.so.1"
printf '#!/bin/sh\\n' >"$3/usr/bin/prometheus"; chmod +x "$3/usr/bin/prometheus"
"""


def program(folder: Path, name: str, text: str) -> None:
    """An executable script."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """PATH with the faked apt-get and dpkg-deb before the shell's own tools."""
    program(tmp_path / "bin", "apt-get", APT)
    program(tmp_path / "bin", "dpkg-deb", DPKG)
    return {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "FAKE_BROKEN": str(tmp_path / "broken")}


def ignore(progress: SetupProgress) -> None:
    """Nobody listens."""


def test_a_program_on_the_path_is_taken_as_it_is(tmp_path: Path, environ: dict[str, str]) -> None:
    """Nothing is downloaded, and it needs no other libraries."""
    program(tmp_path / "bin", "prometheus", "#!/bin/sh\n")

    found = ensure_program("prometheus", tmp_path, environ, ignore)

    assert (tmp_path / "bin" / "prometheus", {}) == (found.path, found.environ)
    assert not (tmp_path / ".system").exists()


def test_a_missing_program_is_unpacked_below_the_checkout_with_its_libraries(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """And is found there the next time, without apt."""
    found = ensure_program("prometheus", tmp_path, environ, ignore)
    (tmp_path / "bin" / "apt-get").unlink()
    again = ensure_program("prometheus", tmp_path, environ, ignore)

    unpacked = tmp_path / ".system" / "prometheus"
    assert unpacked / "usr/bin/prometheus" == found.path
    assert {"LD_LIBRARY_PATH": f"{unpacked}/usr/lib/x86_64-linux-gnu/deep"} == found.environ
    assert again == found


def test_an_interrupted_unpacking_does_not_look_finished_and_is_repeated(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """The marker decides, not the binary."""
    ensure_program("prometheus", tmp_path, environ, ignore)
    (tmp_path / ".system" / "prometheus" / MARKER).unlink()

    assert find_program(PROGRAMS["prometheus"], tmp_path, environ) is None
    assert ensure_program("prometheus", tmp_path, environ, ignore).path.exists()
    assert (tmp_path / ".system" / "prometheus" / MARKER).exists()


def test_without_apt_the_command_that_installs_it_is_named(tmp_path: Path, environ: dict[str, str]) -> None:
    """Other distributions: said plainly."""
    (tmp_path / "bin" / "apt-get").unlink()
    os.symlink("/bin/sh", tmp_path / "bin" / "sh")

    with pytest.raises(EnvironmentProblem, match="prometheus is not installed and, without apt-get") as caught:
        ensure_program("prometheus", tmp_path, environ | {"PATH": str(tmp_path / "bin")}, ignore)

    assert "sudo apt-get install prometheus" in caught.value.fix


def test_a_package_that_cannot_be_had_is_one_sentence(tmp_path: Path, environ: dict[str, str]) -> None:
    """With the log and the command."""
    Path(environ["FAKE_BROKEN"]).touch()

    with pytest.raises(EnvironmentProblem, match=r"could not be unpacked: .*ended with 100; see .*prometheus\.log"):
        ensure_program("prometheus", tmp_path, environ, ignore)

    assert not list((tmp_path / ".system").rglob(MARKER))
