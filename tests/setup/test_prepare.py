"""`make engine`: what it says and returns when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.setup.prepare import prepare


def test_a_cache_that_cannot_be_is_an_exit_code_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback."""
    assert 3 == prepare({"HOME": "/h", "GATEWAY_CACHE_DIR": "relative"})

    assert "GATEWAY_CACHE_DIR must be an absolute path, found 'relative'" in capsys.readouterr().err


def test_the_operators_engine_that_is_missing_names_the_key_and_nothing_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither another engine nor the model is put in its place."""
    cache, compilers = tmp_path / "cache", tmp_path / "bin"
    compilers.mkdir()
    for name in ("gcc", "g++"):
        (compilers / name).write_text("", encoding="utf-8")
        (compilers / name).chmod(0o755)
    environ = {"PATH": str(compilers), "HOME": "/h", "GATEWAY_CACHE_DIR": str(cache)}
    environ["GATEWAY_ENGINE_PYTHON"] = str(tmp_path / "none")

    assert 3 == prepare(environ)

    assert "engines.default.python must be the interpreter" in capsys.readouterr().err
    assert not cache.exists()


def test_a_machine_that_lacks_something_is_told_so_before_anything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a PATH there is no compiler."""
    assert 3 == prepare({"PATH": "", "HOME": "/h", "GATEWAY_CACHE_DIR": str(tmp_path)})

    said = capsys.readouterr().err
    assert "blocker" in said
    assert "sudo apt-get install build-essential" in said
    assert [] == list(tmp_path.iterdir())
