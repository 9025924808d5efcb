"""The first program on a fresh machine: old interpreters, none at all, nothing installed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.setup.bootstrap import find_interpreter, supported, version_of
from gateway.setup.installer import StepFailed
from gateway.setup.light import checkout, exit_code, light_key

ROOT = checkout()
BEFORE_ANYTHING = ["bootstrap", "light", "facts", "doctor", "builds", "completion", "installer", "progress", "sizes"]


def probe(installed: dict[str, tuple[int, int]]) -> Callable[[str], tuple[int, int] | None]:
    """Interpreters by command, as `version_of` would find them."""
    return installed.get


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"python3": (3, 12), "python3.14": (3, 14)}, "python3"),
        ({"python3": (3, 9), "python3.11": (3, 11), "python3.13": (3, 13)}, "python3.13"),
        ({"python3": (3, 15), "python3.14": (3, 14)}, "python3.14"),
        ({"python3.12": (3, 12)}, "python3.12"),
        ({"python3": (3, 9)}, None),
        ({}, None),
    ],
)
def test_python3_is_taken_when_it_fits_else_the_newest_supported(
    installed: dict[str, tuple[int, int]], expected: str | None
) -> None:
    """Newer than supported does not fit either."""
    command, _ = find_interpreter("", probe(installed))

    assert command == expected


def test_the_operators_choice_is_never_replaced() -> None:
    """PYTHON= names one that is too old: an error, although another would do."""
    command, looked_at = find_interpreter("/opt/py", probe({"/opt/py": (3, 9), "python3": (3, 12)}))

    assert command is None
    assert looked_at == ["/opt/py: Python 3.9"]


def test_a_program_that_does_not_start_has_no_version(tmp_path: Path) -> None:
    """A pyenv shim of a version that is not chosen exits with an error."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)

    assert version_of(str(shim)) is None
    assert version_of(str(tmp_path / "none")) is None
    assert version_of(sys.executable) == sys.version_info[:2]


@pytest.mark.parametrize(("version", "fits"), [((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False)])
def test_supported_versions(version: tuple[int, int], fits: bool) -> None:
    """The same range as requires-python in pyproject.toml."""
    assert supported(version) is fits


@pytest.mark.parametrize("file", ["gateway/__init__.py", "gateway/setup/__init__.py", "gateway/setup/bootstrap.py"])
def test_what_an_old_interpreter_reads_is_syntax_it_knows(file: str) -> None:
    """Otherwise the operator gets a SyntaxError in place of the sentence that says what is needed."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"), feature_version=(3, 4))

    # `ast.parse` accepts these whatever the version it is asked for.
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.NamedExpr | ast.AnnAssign)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "__future__" not in [node.module for node in imports]


def test_an_interpreter_that_is_too_old_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """Exit code 3, the versions needed, what was found, what to do; nothing is built."""
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3 8\n", encoding="utf-8")
    old.chmod(0o755)

    run = subprocess.run(
        [sys.executable, "-m", "gateway.setup.bootstrap"],
        env={**os.environ, "PYTHON": str(old)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 3
    assert f"needs Python 3.11 to 3.14, found: {old}: Python 3.8." in run.stderr
    assert "make PYTHON=" in run.stderr
    assert "Traceback" not in run.stderr


def test_set_up_needs_the_standard_library_only() -> None:
    """Imported with site-packages switched off, as on a machine where nothing is installed yet."""
    imports = "; ".join(f"import gateway.setup.{name}" for name in BEFORE_ANYTHING)
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {imports}"

    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)

    assert (run.returncode, run.stderr) == (0, "")


def checkout_of(folder: Path, project: str, lock: str) -> Path:
    """A checkout of two files."""
    (folder / "requirements").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    (folder / "requirements" / "lock.txt").write_text(lock, encoding="utf-8")
    return folder


def test_the_key_changes_with_what_is_installed_and_not_with_the_tools_settings(tmp_path: Path) -> None:
    """A new lint rule costs no reinstallation; a new dependency, lock or Python does."""
    root = checkout_of(tmp_path, "[project]\nname='x'\n", "a==1\n")
    python = (3, 12, 1)
    key = light_key(root, python)

    (root / "pyproject.toml").write_text("[project]\nname='x'\n[tool.ruff]\nline-length=1\n", encoding="utf-8")
    same = light_key(root, python)
    (root / "pyproject.toml").write_text("[project]\nname='x'\ndependencies=['b']\n", encoding="utf-8")
    other_project = light_key(root, python)
    (root / "requirements" / "lock.txt").write_text("a==2\n", encoding="utf-8")
    other_lock = light_key(root, python)

    assert same == key
    assert len({key, other_project, other_lock, light_key(root, (3, 12, 2))}) == 4


def test_the_tools_lock_agrees_with_the_light_one_and_adds_to_it() -> None:
    """Both are installed into one environment: what is in both is the same, and serving needs none of the tools."""
    light, tools = (
        {line.split()[0] for line in (ROOT / "requirements" / name).read_text().splitlines() if "==" in line}
        for name in ("lock.txt", "tools.txt")
    )
    names = {line.partition("==")[0] for line in light}

    assert light < tools
    assert names.isdisjoint({"ruff", "playwright", "matplotlib", "hypothesis"})


@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [
        (StepFailed(["pip", "install"], 1, ["ERROR: no matching distribution"]), 3, "The tools could not be installed"),
        (OSError("no space left"), 3, "could not be written: no space left"),
        (KeyboardInterrupt(), 130, "Interrupted; the next run goes on."),
        (None, 0, ""),
    ],
)
def test_what_keeps_an_installation_from_succeeding_is_told(
    failure: BaseException | None, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence on standard error and an exit code, never a traceback."""

    def install() -> None:
        if failure is not None:
            raise failure

    assert code == exit_code(install, "The tools", Path("tools.log"), "the next run goes on")
    assert told in capsys.readouterr().err
