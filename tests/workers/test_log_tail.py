"""Following a file that another process appends to."""

from __future__ import annotations

from pathlib import Path

from gateway.workers.log_tail import KEPT_LINES, LogTail


def test_only_complete_lines_come_and_each_once(tmp_path: Path) -> None:
    """A line that is still being written waits for its end, in the middle of a character too."""
    path = tmp_path / "log"
    tail = LogTail(path)
    assert [] == tail.read()
    with path.open("ab") as file:
        file.write("eins\nzwei für".encode()[:-1])
        file.flush()
        assert ["eins"] == tail.read()
        file.write("ür\n".encode()[1:] + b"\n\ndrei\n")
        file.flush()
        assert [] == [line for line in tail.read() if "eins" in line]
    assert "drei" == tail.last_lines[-1]


def test_a_progress_bar_is_many_lines(tmp_path: Path) -> None:
    """tqdm ends its lines with a carriage return."""
    path = tmp_path / "log"
    path.write_bytes(b"shards:   0%\rshards:  50%\rshards: 100%\r\nnext\n")
    assert ["shards:   0%", "shards:  50%", "shards: 100%", "next"] == LogTail(path).read()


def test_the_last_lines_are_kept_and_no_more(tmp_path: Path) -> None:
    """A worker that logs for weeks costs no memory."""
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    tail = LogTail(path)
    tail.drain()
    assert [f"line {number}" for number in range(100_000 - KEPT_LINES, 100_000)] == list(tail.last_lines)


def test_the_unfinished_last_line_of_a_dead_worker_counts(tmp_path: Path) -> None:
    """It is often the one that tells."""
    path = tmp_path / "log"
    path.write_text("one\nFatal: no end")
    tail = LogTail(path)
    tail.drain()
    assert ["one", "Fatal: no end"] == list(tail.last_lines)


def test_a_line_without_end_does_not_grow_for_ever(tmp_path: Path) -> None:
    """It is cut where a line cannot be meant any more."""
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1_000_000)
    tail = LogTail(path)
    tail.drain()
    assert all(len(line) <= 320 * 1024 for line in tail.last_lines)


def test_foreign_bytes_do_not_stop_the_tail(tmp_path: Path) -> None:
    """A log is not always UTF-8."""
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe bad\nnext\n")
    assert "next" == LogTail(path).read()[1]
