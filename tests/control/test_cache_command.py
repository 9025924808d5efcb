"""What `gateway cache --prune` says of a removal that does not go as asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.control import cache_command
from gateway.control.cache_command import remove_all
from gateway.errors import Interrupted
from gateway.setup.cache import Use, look
from gateway.setup.completion import finish
from gateway.setup.users import Holds


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two engines of earlier releases."""
    for name in ("old", "older"):
        folder = tmp_path / "engines" / name
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(os.urandom(2_000_000))
        folder.with_name(f"{name}.lock").touch()
        finish(folder, name, {})
    return tmp_path


def test_what_somebody_has_begun_to_use_since_the_question_is_left(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the rest goes; only what went counts as freed."""
    entries = look(cache)
    with Holds(cache) as holds:
        holds.hold(cache / "engines" / "old")
        remove_all(cache, entries)

    assert [
        "left engines/old: somebody has begun to build or use it",
        "removed engines/older (2 MB)",
        "freed: 2 MB",
    ] == capsys.readouterr().out.splitlines()
    assert [Use.NONE] == [entry.use for entry in look(cache)]


def test_an_interrupt_is_one_sentence_and_the_next_run_goes_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not reached is whole."""

    def interrupted(entry: object) -> bool:
        raise KeyboardInterrupt

    entries = look(cache)
    with monkeypatch.context() as patch:
        patch.setattr(cache_command, "remove", interrupted)
        with pytest.raises(Interrupted, match="the next --prune removes the rest") as caught:
            remove_all(cache, entries)
    after = [entry.use for entry in look(cache)]
    remove_all(cache, entries)

    assert 130 == caught.value.exit_code
    assert [Use.NONE, Use.NONE] == after
    assert () == look(cache)
