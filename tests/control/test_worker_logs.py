"""`gateway logs`: the right file, its last lines, and a restart while following."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.control.worker_logs import follow, log_path, tail
from gateway.errors import EnvironmentProblem


def test_the_current_and_the_previous_run_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "m-0.log").write_text("now")
    (tmp_path / "m-0.previous.log").write_text("before")

    assert b"now" == b"".join(tail(log_path(tmp_path, "m-0", previous=False), 9))
    assert b"before" == b"".join(tail(log_path(tmp_path, "m-0", previous=True), 9))


def test_an_unknown_worker_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    """Nothing outside the folder is ever opened."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "secret.log").write_text("x")
    for name in ("m-0", "m-1"):
        (tmp_path / "logs" / f"{name}.log").touch()
    with pytest.raises(EnvironmentProblem, match="m-0, m-1"):
        log_path(tmp_path / "logs", "m-2", previous=False)
    with pytest.raises(EnvironmentProblem, match="m-0, m-1"):
        log_path(tmp_path / "logs", "../secret", previous=False)
    with pytest.raises(EnvironmentProblem, match="only once"):
        log_path(tmp_path / "logs", "m-0", previous=True)


def test_only_the_last_lines_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "m-0.log"
    path.write_text("".join(f"{number}\n" for number in range(100)))

    assert [b"98\n", b"99\n"] == list(tail(path, 2))
    assert [] == list(tail(path, 0))


def test_following_goes_on_in_the_file_of_the_next_run(tmp_path: Path) -> None:
    """What the old run wrote last is not lost, and the new file is read from its beginning."""
    path = tmp_path / "m-0.log"
    path.write_bytes(b"a\nb\n")
    steps = iter(
        [
            lambda: path.write_bytes(b"a\nb\nc\n"),
            lambda: path.rename(tmp_path / "m-0.previous.log"),
            lambda: path.write_bytes(b"new\n"),
        ]
    )

    class Enough(Exception):
        pass

    def pause(seconds: float) -> None:
        step = next(steps, None)
        if step is None:
            raise Enough
        step()

    seen: list[bytes] = []
    with pytest.raises(Enough):
        seen.extend(follow(path, 1, pause))

    assert b"b\nc\nnew\n" == b"".join(seen)
