"""The relay's compiled modules: found only where they are whole and made from the present sources."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from gateway.setup import compiled
from gateway.setup.compiled import (
    FOLDER,
    KEPT,
    ROOT,
    CompiledFinder,
    activate,
    compiled_folder,
    compiled_key,
    ensure_compiled,
    sources,
)
from gateway.setup.completion import finish, finished
from gateway.setup.progress import SetupProgress

SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


class Checkout:
    """A copy of the sources and an environment whose `python` is a shell script in place of the compiler's run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.prefix = folder / "environment"
        self.reports: list[SetupProgress] = []
        self.runs = folder / "runs"
        shutil.copytree(ROOT / "gateway", self.root / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
        self.compiler("exit 0")

    def compiler(self, script: str, imports: str = "exit 0") -> None:
        python = self.prefix / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        lines = ("#!/bin/sh", f'if [ "$1" = -P ]; then {imports}; exit; fi', f"echo run >> {self.runs}", script, "")
        python.write_text("\n".join(lines), encoding="utf-8")
        python.chmod(0o755)

    def ensure(self, path: str | None = None, *, again: bool = False) -> bool:
        environ = {"PATH": path if path is not None else "/usr/local/bin:/usr/bin:/bin"}
        return ensure_compiled(self.root, self.prefix, environ, self.reports.append, again=again)

    @property
    def times_run(self) -> int:
        return len(self.runs.read_text(encoding="utf-8").splitlines()) if self.runs.exists() else 0

    def edit(self) -> None:
        with (self.root / "gateway" / "record.py").open("a", encoding="utf-8") as file:
            file.write("# changed\n")

    @property
    def builds(self) -> set[str]:
        """Folders, whether they look finished or not."""
        return {one.name for one in (self.prefix / FOLDER).iterdir() if one.is_dir()} - {"failed"}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


WORKS = f"mkdir -p gateway/proxy build && touch gateway/proxy/answer{SUFFIX} build/left.so"


def test_every_source_that_is_named_exists_and_none_defines_what_cannot_be_compiled() -> None:
    """mypyc replaces the annotations that msgspec and pydantic read at run time."""
    files = sources()

    assert [] == [file for file in files if not (ROOT / file).is_file()]
    assert len(set(files)) == len(files)
    assert [] == [
        file for file in files if any(word in (ROOT / file).read_text() for word in ("msgspec.Struct)", "(BaseModel"))
    ]


def test_what_is_compiled_belongs_to_its_sources(checkout: Checkout) -> None:
    """A changed source is another build, and so is one whose types it relies on; what is far away is not looked at."""
    keys = [compiled_key(checkout.root)]
    (checkout.root / "gateway" / "control" / "front.py").write_text("", encoding="utf-8")
    unconcerned = compiled_key(checkout.root)
    checkout.edit()
    keys.append(compiled_key(checkout.root))
    with (checkout.root / "gateway" / "types.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    keys.append(compiled_key(checkout.root))

    assert keys[0] == unconcerned
    assert len(set(keys)) == 3


def test_a_build_is_made_once_and_holds_nothing_but_the_extensions(checkout: Checkout) -> None:
    checkout.compiler(WORKS)
    first, second = checkout.ensure(), checkout.ensure()
    folder = compiled_folder(compiled_key(checkout.root), checkout.prefix)

    assert (True, True, 1) == (first, second, checkout.times_run)
    assert [folder / "gateway" / "proxy" / f"answer{SUFFIX}"] == list(folder.rglob("*.so"))
    assert [] == list(checkout.root.rglob("*.so")), "nothing is written beside the sources"


def test_without_a_compiler_nothing_is_tried_and_the_packages_are_named(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled.sysconfig, "get_config_var", lambda name: ".so" if name == "EXT_SUFFIX" else "gone-cc")

    assert not checkout.ensure(path="/nowhere")
    assert 0 == checkout.times_run
    assert "build-essential" in checkout.reports[-1].detail


def test_what_failed_is_told_with_its_log_and_not_tried_again_before_that_is_removed(checkout: Checkout) -> None:
    """Forty seconds at every `make` would be worse than the slower relay."""
    checkout.compiler("echo 'error: no such instruction'; exit 1")
    first, second = checkout.ensure(), checkout.ensure()
    told = [report.detail for report in checkout.reports]
    (log,) = (checkout.prefix / FOLDER).glob("*.log")
    log_text = log.read_text(encoding="utf-8")
    log.unlink()
    checkout.compiler(WORKS)

    assert (False, False) == (first, second)
    assert 1 == checkout.times_run
    assert "no such instruction" in told[-2]
    assert str(log) in told[-1]
    assert "no such instruction" in log_text
    assert checkout.ensure()
    assert {compiled_key(checkout.root)} == checkout.builds


def test_an_interrupted_build_leaves_nothing_and_displaces_no_other(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at once; what a kill leaves is gone with the next. Running processes still load from the build before."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    checkout.compiler(WORKS)
    assert checkout.ensure()
    before = checkout.builds
    checkout.edit()
    with monkeypatch.context() as patched:
        patched.setattr(compiled, "run_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkout.ensure()
    assert before == checkout.builds
    killed = checkout.prefix / FOLDER / "building" / f"left{SUFFIX}"
    killed.parent.mkdir()
    killed.touch()
    checkout.edit()

    assert checkout.ensure()
    assert {*before, compiled_key(checkout.root)} == checkout.builds
    assert [] == list((checkout.prefix / FOLDER).rglob(killed.name))


def test_an_environment_of_somebody_else_is_left_as_it_is(checkout: Checkout) -> None:
    """Whoever may not write there still gets a gateway, of the sources, and is told why."""
    (checkout.prefix / "lib").write_text("no folder", encoding="utf-8")

    assert not checkout.ensure()
    assert 0 == checkout.times_run
    assert "could not be written" in checkout.reports[-1].detail


def test_what_was_compiled_and_does_not_load_is_not_finished(checkout: Checkout) -> None:
    """Of another processor, with a symbol missing: whoever would import it first is a gateway process."""
    checkout.compiler(WORKS, imports="echo 'ImportError: undefined symbol'; exit 1")

    assert not checkout.ensure()
    assert set() == checkout.builds
    assert "undefined symbol" in checkout.reports[-1].detail


def test_sources_that_change_while_they_are_waited_for_are_not_taken_for_those_before(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build is of what its key names, or none: a checkout of earlier sources would find it one day."""
    checkout.compiler(WORKS)
    copy = shutil.copytree

    def late(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()  # it calls itself
        checkout.edit()
        return copy(*given, **options)

    monkeypatch.setattr(compiled.shutil, "copytree", late)

    assert not checkout.ensure()
    assert 0 == checkout.times_run
    assert "changed" in checkout.reports[-1].detail
    assert set() == checkout.builds
    assert checkout.ensure()


def test_who_asks_for_it_gets_another_try(checkout: Checkout) -> None:
    """`python -m gateway.setup.compiled`, after what was missing has been installed."""
    checkout.compiler("exit 1")
    assert not checkout.ensure()
    checkout.compiler(WORKS)

    assert not checkout.ensure()
    assert checkout.ensure(again=True)


@pytest.mark.parametrize("name", [".#answer.py", "answer copy.py"])
def test_an_editors_files_are_no_sources(checkout: Checkout, name: str) -> None:
    """A dangling lock of Emacs cannot even be read."""
    key = compiled_key(checkout.root)
    (checkout.root / "gateway" / "proxy" / name).symlink_to("user@host.1234:56")

    assert key == compiled_key(checkout.root)
    assert all(name not in str(file) for file in sources(checkout.root))
    checkout.compiler(WORKS)
    assert checkout.ensure()


def test_other_sources_are_tried_though_the_last_ones_failed(checkout: Checkout) -> None:
    checkout.compiler("exit 1")
    assert not checkout.ensure()
    checkout.compiler(WORKS)
    checkout.edit()

    assert checkout.ensure()


def test_the_build_before_is_kept_for_processes_that_still_run_and_older_ones_go(checkout: Checkout) -> None:
    checkout.compiler(WORKS)
    keys = []
    for _ in range(KEPT + 2):
        checkout.edit()
        assert checkout.ensure()
        keys.append(compiled_key(checkout.root))

    assert keys[-1] in checkout.builds
    assert KEPT == len(checkout.builds)


@pytest.mark.parametrize("state", ["nothing", "unfinished", "other sources"])
def test_what_is_not_whole_or_not_of_these_sources_is_not_imported(checkout: Checkout, state: str) -> None:
    """The sources run instead, and imports are as they were."""
    finders = list(sys.meta_path)
    if state == "unfinished":
        (checkout.prefix / FOLDER / compiled_key(checkout.root) / "gateway").mkdir(parents=True)
    if state == "other sources":
        checkout.compiler(WORKS)
        assert checkout.ensure()
        checkout.edit()

    assert not activate(checkout.root, checkout.prefix)
    assert finders == sys.meta_path


def test_an_interrupted_build_does_not_look_finished(checkout: Checkout) -> None:
    """Killed between the first extension and the marker: the next run makes it again."""
    checkout.compiler(WORKS)
    assert checkout.ensure()
    key = compiled_key(checkout.root)
    folder = compiled_folder(key, checkout.prefix)
    (folder / ".complete.json").unlink()

    assert finished(folder, key) is None
    assert checkout.ensure()
    assert 2 == checkout.times_run


def test_the_finder_knows_the_extensions_by_their_modules_names(tmp_path: Path) -> None:
    (tmp_path / "gateway" / "proxy").mkdir(parents=True)
    file = tmp_path / "gateway" / "proxy" / f"answer{SUFFIX}"
    file.touch()
    (tmp_path / f"0123__mypyc{SUFFIX}").touch()
    finish(tmp_path, "key", {})
    finder = CompiledFinder(tmp_path)
    spec = finder.find_spec("gateway.proxy.answer", None)

    assert spec is not None
    assert str(file) == spec.origin
    assert finder.find_spec("0123__mypyc", None) is not None
    assert finder.find_spec("gateway.proxy.exchange", None) is None
    assert finder.find_spec("gateway", None) is None
