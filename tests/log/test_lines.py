"""A reader of the log that is slow, stuck or gone costs lines, never time."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gateway.clock import SystemClock
from gateway.log import EventLog
from gateway.log.lines import FILE_PIECE_BYTES, MAX_WAITING_BYTES, PIECE_BYTES, LineQueue, piece_bytes_for
from tests.e2e.served import wait_until

LONG_S = 30.0


class Reader:
    """The other end: blocks every write until `resume`; `written` are the pieces, in order."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.stuck = threading.Event()
        self._go = threading.Event()

    def write(self, piece: bytes) -> None:
        self.stuck.set()
        assert self._go.wait(LONG_S)
        self.written.append(piece)

    def resume(self) -> None:
        self._go.set()


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.resume()


def gap(count: int) -> bytes:
    return b"dropped %d\n" % count


def test_only_a_regular_file_takes_more_at_once_than_a_pipe(tmp_path: Path) -> None:
    """Pipes and terminals are shared by the supervisor and all gateway processes: what is longer would be torn."""
    read, write = os.pipe()
    with os.fdopen(read, "rb"), os.fdopen(write, "wb") as pipe, (tmp_path / "log").open("wb") as regular:
        assert (PIECE_BYTES, FILE_PIECE_BYTES) == (piece_bytes_for(pipe), piece_bytes_for(regular))
    assert PIECE_BYTES == piece_bytes_for(io.BytesIO())


def test_lines_arrive_whole_in_order_and_all_of_them() -> None:
    """Gathered into writes of which none is torn by another process that writes into the same pipe."""
    written: list[bytes] = []
    queue = LineQueue(written.append, gap)
    lines = [b"%06d %s\n" % (number, b"x" * (number % 700)) for number in range(2000)]
    lines.append(b"y" * 3 * PIECE_BYTES + b"\n")
    for line in lines:
        queue.put(line)
    queue.close()

    assert b"".join(lines) == b"".join(written)
    assert all(piece.endswith(b"\n") for piece in written)
    assert all(len(piece) <= PIECE_BYTES for piece in written if piece.count(b"\n") > 1)
    assert len(written) < len(lines)
    assert 0 == queue.dropped


def test_a_stuck_reader_costs_lines_and_is_told_how_many(reader: Reader) -> None:
    """`put` returns at once; what does not fit is dropped, and the count stands where the lines are missing."""
    queue = LineQueue(reader.write, gap)
    line = b"x" * 1023 + b"\n"
    queue.put(b"first\n")
    assert reader.stuck.wait(LONG_S)
    count = MAX_WAITING_BYTES // len(line) + 500
    for _ in range(count):
        queue.put(line)
    dropped = queue.dropped
    reader.resume()
    queue.close(LONG_S)

    kept = sum(piece.count(line) for piece in reader.written)
    assert 500 <= dropped <= 501
    assert (count, dropped) == (kept + dropped, queue.dropped)
    assert b"".join(reader.written).endswith(gap(dropped))


def test_what_was_dropped_while_the_last_lines_were_written_is_told_without_a_further_line() -> None:
    """Nobody may log again for hours: the reader should not have to wait for that to learn what is missing."""
    reader = Reader()
    lines = LineQueue(reader.write, gap)
    big = b"x" * (MAX_WAITING_BYTES - 1) + b"\n"
    lines.put(big)
    assert reader.stuck.wait(LONG_S)
    lines.put(b"too much\n")
    reader.resume()

    wait_until(lambda: reader.written == [big, gap(1)], within_s=LONG_S, what="the gap is told")
    lines.close()


def test_closing_does_not_wait_for_a_stuck_reader(reader: Reader) -> None:
    """Longer than it was told to; later lines are lost and counted."""
    queue = LineQueue(reader.write, gap)
    queue.put(b"first\n")
    assert reader.stuck.wait(LONG_S)
    queue.close(timeout_s=0.01)
    queue.put(b"late\n")

    assert 1 == queue.dropped


def test_a_pipe_that_nobody_reads_blocks_neither_the_log_nor_the_exit() -> None:
    """A process logs far more than a pipe holds and ends by itself, in good order, while nobody reads a byte."""
    program = """
import sys
from gateway.clock import SystemClock
from gateway.log import EventLog

log = EventLog.to_file(sys.stderr.buffer, SystemClock(), "json", {"slot": 0})
for number in range(20_000):
    log.event("noise", number=number, text="x" * 300)
log.close()
print(log.dropped)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert 0 == process.wait(LONG_S)
        dropped = int(process.stdout.read())
        seen = [json.loads(line)["number"] for line in process.stderr.read().splitlines()]

    assert dropped > 1000
    assert list(range(len(seen))) == seen
    assert seen


def test_a_reader_that_comes_back_gets_the_lines_and_the_gap() -> None:
    """The log of a process whose reader slept for a while is whole JSON lines, with the gap where it is."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reading:
        with os.fdopen(write, "wb", buffering=0) as writing:
            log = EventLog.to_file(writing, SystemClock())  # type: ignore[arg-type]
            for number in range(20_000):
                log.event("noise", number=number, text="x" * 300)
            lines: list[bytes] = []
            reader = threading.Thread(target=lambda: lines.extend(reading))
            reader.start()
            log.close()
            dropped = log.dropped
        reader.join(LONG_S)
    events = [json.loads(line) for line in lines]
    gaps = [event["lines"] for event in events if event["event"] == "log_lines_dropped"]

    assert dropped > 1000
    assert dropped == sum(gaps)
    assert 20_000 == sum(event["event"] == "noise" for event in events) + dropped


def dropped_are(queue: LineQueue, expected: int) -> bool:
    return queue.dropped == expected


def test_a_disk_that_was_full_for_a_while_leaves_a_gap_that_is_told() -> None:
    """What could not be written is told as soon as writing works again, and counted once."""
    written: list[bytes] = []
    full = threading.Event()
    full.set()

    def write(piece: bytes) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(piece)

    queue = LineQueue(write, gap)
    for expected in (1, 2):
        queue.put(b"lost\n")
        wait_until(partial(dropped_are, queue, expected), within_s=LONG_S, what="a line that was not written")
    full.clear()
    queue.put(b"kept\n")
    queue.close()
    lines = b"".join(written).splitlines()

    assert b"kept" in lines
    assert b"lost" not in lines
    assert 2 == sum(int(line.split()[1]) for line in lines if line.startswith(b"dropped"))
    assert 2 == queue.dropped


class Nosy(bytes):
    """A line that, when it is measured, has the same queue take another one: as a finalizer does that logs."""

    queues: list[LineQueue]

    def __len__(self) -> int:
        if self.queues:
            self.queues.pop().put(b"from a finalizer\n")
        return super().__len__()


def test_a_line_that_is_logged_while_another_one_is_queued_neither_waits_nor_is_lost() -> None:
    """The garbage collector logs in the middle of anything, in the very thread that has the queue's lock."""
    written: list[bytes] = []
    queue = LineQueue(written.append, gap)
    line = Nosy(b"first\n")
    line.queues = [queue]
    thread = threading.Thread(target=queue.put, args=(line,), daemon=True)
    thread.start()
    thread.join(LONG_S)
    stuck = thread.is_alive()
    if not stuck:
        queue.close()

    assert not stuck
    assert {b"first", b"from a finalizer"} == set(b"".join(written).splitlines())
