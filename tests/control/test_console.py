"""The terminal of `gateway up` when nobody reads it: the fleet must not notice."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import IO

import pytest
from rich.console import Console

from gateway.clock import SystemClock
from gateway.control.console import ConsoleWatcher, unhurried

LONG_S = 30.0
MANY = 200
LINE = "x" * 1000
"""Together three times what a pipe holds (64 KiB)."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, IO[str]]]:
    """The reading end, and the writing end as standard output has it."""
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8", closefd=False) as file:
        yield reading, file
    os.close(writing)
    os.close(reading)


def test_a_reader_that_stands_still_holds_up_nothing_and_loses_nothing_yet(pipe: tuple[int, IO[str]]) -> None:
    """Ctrl-S, a pager, a stopped program: every call returns; what was said is there when reading goes on."""
    reading, file = pipe
    console = Console(file=file, width=80)
    said = threading.Event()
    heard = bytearray()

    def speak() -> None:
        with unhurried(console):
            watcher = ConsoleWatcher(console, SystemClock(), ["m"], proxied=False)
            for _ in range(MANY):
                watcher.said(LINE)
            said.set()
            assert resumed.wait(LONG_S)

    resumed = threading.Event()
    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    returned = said.wait(LONG_S)
    resumed.set()
    while returned and len(heard) < MANY * (len(LINE) + 1):
        heard += os.read(reading, 65536)
    thread.join(LONG_S)

    assert returned
    assert not thread.is_alive()
    assert [LINE] * MANY == heard.decode().splitlines()
    assert console.file is file


def test_a_reader_that_never_comes_back_does_not_keep_the_program_from_ending(pipe: tuple[int, IO[str]]) -> None:
    """The end waits a second for it, not longer."""
    _, file = pipe
    console = Console(file=file, width=80)

    def speak() -> None:
        with unhurried(console):
            for _ in range(MANY):
                console.print(LINE, soft_wrap=True)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    thread.join(LONG_S)

    assert not thread.is_alive()


def test_a_reader_that_is_gone_costs_lines_and_nothing_else() -> None:
    """`gateway up | head -1`: nothing is raised, neither then nor at the end."""
    reading, writing = os.pipe()
    os.close(reading)
    file = open(writing, "w", encoding="utf-8")  # noqa: SIM115  # closed below, which must raise nothing
    console = Console(file=file, width=80)
    with unhurried(console):
        ConsoleWatcher(console, SystemClock(), ["m"], proxied=False).said(LINE)
    file.close()
