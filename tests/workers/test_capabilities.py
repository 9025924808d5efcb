"""Which optional flags an engine knows: found in its source, asked once, remembered on disk."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gateway.workers.capabilities import FlagProbe, declared
from gateway.workers.command_line import OPTIONAL_FLAGS

ALL = frozenset(OPTIONAL_FLAGS)
FIELDS = '''
class FrontendArgs:
    enable_request_id_headers: bool = False
    """Add the header."""
    disable_access_log_for_endpoints: str | None = None
'''

pytestmark = pytest.mark.anyio


def environment(
    folder: Path, source: str | None = FIELDS, *, version: str = "0.32.0", counter: Path | None = None
) -> Path:
    """An interpreter whose environment has a package vllm with this source; each run of it adds a line to `counter`."""
    site = folder / "lib" / "python3.11" / "site-packages"
    if source is not None:
        (site / "vllm" / "entrypoints" / "launchers").mkdir(parents=True)
        (site / "vllm" / "__init__.py").write_text("raise SystemExit('the engine must not be imported')\n")
        (site / "vllm" / "entrypoints" / "launchers" / "cli_args.py").write_text(source)
        (site / "vllm-0.32.0.dist-info").mkdir()
        (site / "vllm-0.32.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.32.0\n")
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    log = f"echo run >> {counter}\n" if counter else ""
    code = f"import sys; sys.path.insert(0, {str(site)!r}); exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\n{log}exec {sys.executable} -I -c "{code}" "$3"\n')
    python.chmod(0o755)
    return python


def probe(file: Path | None) -> FlagProbe:
    return FlagProbe(file, dict(os.environ))


def runs(counter: Path) -> int:
    return len(counter.read_text().splitlines()) if counter.exists() else 0


async def test_flags_are_found_without_importing_the_engine(tmp_path: Path) -> None:
    """Its import takes half a minute, and here it would fail."""
    assert ALL == await probe(None).known(environment(tmp_path))


async def test_a_flag_that_is_not_declared_is_not_known(tmp_path: Path) -> None:
    """An older engine."""
    python = environment(tmp_path, "class A:\n    enable_request_id_headers: bool = False\n")
    assert frozenset({"--enable-request-id-headers"}) == await probe(None).known(python)


async def test_an_environment_without_vllm_knows_none(tmp_path: Path) -> None:
    """The simulator, a wrapper script; and an interpreter that cannot be run."""
    assert frozenset() == await probe(None).known(environment(tmp_path, None))
    assert frozenset() == await probe(None).known(tmp_path / "none")


async def test_an_interpreter_is_asked_once(tmp_path: Path) -> None:
    """Over restarts of the gateway too."""
    counter, file = tmp_path / "runs", tmp_path / "cache" / "flags.json"
    python = environment(tmp_path / "engine", counter=counter)
    first = probe(file)
    assert ALL == await first.known(python) == await first.known(python)
    assert ALL == await probe(file).known(python)
    assert 1 == runs(counter)


async def test_another_version_in_the_same_place_is_asked_again(tmp_path: Path) -> None:
    """pip install -U leaves the interpreter as it was."""
    counter, file = tmp_path / "runs", tmp_path / "flags.json"
    python = environment(tmp_path / "engine", counter=counter)
    await probe(file).known(python)
    site = tmp_path / "engine" / "lib" / "python3.11" / "site-packages"
    (site / "vllm-0.32.0.dist-info").rename(site / "vllm-0.33.0.dist-info")
    (site / "vllm" / "entrypoints" / "launchers" / "cli_args.py").write_text("")
    assert frozenset() == await probe(file).known(python)
    assert 2 == runs(counter)


async def test_another_interpreter_in_the_same_place_is_asked_again(tmp_path: Path) -> None:
    """An environment that was built anew."""
    counter, file = tmp_path / "runs", tmp_path / "flags.json"
    python = environment(tmp_path / "engine", counter=counter)
    await probe(file).known(python)
    os.utime(python, ns=(1, 1))
    await probe(file).known(python)
    assert 2 == runs(counter)


async def test_a_refused_flag_is_remembered(tmp_path: Path) -> None:
    """Over restarts of the gateway."""
    file = tmp_path / "flags.json"
    python = environment(tmp_path / "engine")
    first = probe(file)
    await first.known(python)
    first.forget(python, frozenset({"--enable-request-id-headers"}))
    assert ALL - {"--enable-request-id-headers"} == await first.known(python) == await probe(file).known(python)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"asked": ["--other"], "engines": {"x": {"version": "", "flags": []}}}']
)
async def test_a_file_that_says_nothing_is_written_anew(tmp_path: Path, text: str) -> None:
    """Broken, or about other flags than ours."""
    file = tmp_path / "flags.json"
    file.write_text(text)
    assert ALL == await probe(file).known(environment(tmp_path / "engine"))
    assert sorted(ALL) == json.loads(file.read_text())["asked"]


async def test_a_file_that_cannot_be_written_costs_a_probe(tmp_path: Path) -> None:
    """No start fails for it."""
    (tmp_path / "file").write_text("")
    assert ALL == await probe(tmp_path / "file" / "flags.json").known(environment(tmp_path / "engine"))


def test_a_mention_is_no_declaration() -> None:
    """Comments, other classes' uses and parameters do not count; old releases declare by the flag itself."""
    used = "    def f(self, enable_request_id_headers):\n        return self.enable_request_id_headers  # --enable\n"
    assert frozenset() == declared([used], ALL)
    old = '    parser.add_argument("--enable-request-id-headers", action="store_true")\n'
    assert frozenset({"--enable-request-id-headers"}) == declared([old], ALL)
