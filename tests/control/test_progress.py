"""What people read while a fleet starts: decided by pure functions, shown by the console."""

from __future__ import annotations

import io
from dataclasses import replace

import anyio
import pytest
from rich.console import Console

from gateway.clock import SystemClock
from gateway.control.console import ConsoleWatcher
from gateway.control.progress import REMIND_S, ProgressLines, elapsed, serving_block
from gateway.control.watcher import Addresses
from gateway.types import WorkerState
from gateway.workers.status import WorkerStatus

ADDRESSES = Addresses(public="http://127.0.0.1:8000", admin="http://127.0.0.1:8001")
STARTING = WorkerStatus(
    name="m-0",
    model="m",
    state=WorkerState.STARTING,
    launch_id="l",
    address=None,
    changed_at_s=100.0,
    started_at_s=100.0,
    phase="loading weights",
    progress=0.45,
)


def test_every_phase_is_said_once_with_its_elapsed_time() -> None:
    """Progress within a phase is no news; the next phase and the end are."""
    lines = ProgressLines()

    assert ["m-0                        0:05  loading weights (45%)"] == lines.lines([STARTING], 105.0)
    assert [] == lines.lines([replace(STARTING, progress=0.5)], 106.0)
    assert ["m-0                        1:07  warming up (45%)"] == lines.lines(
        [replace(STARTING, phase="warming up")], 167.0
    )
    assert ["m-0                        1:08  ready"] == lines.lines(
        [replace(STARTING, state=WorkerState.READY)], 168.0
    )
    assert [] == lines.lines([replace(STARTING, state=WorkerState.READY)], 999.0)


def test_a_long_phase_is_said_again_every_ten_seconds() -> None:
    """Nobody looks at a silent terminal and wonders."""
    lines = ProgressLines()
    lines.lines([STARTING], 100.0)

    assert [] == lines.lines([STARTING], 100.0 + REMIND_S - 0.1)
    assert 1 == len(lines.lines([STARTING], 100.0 + REMIND_S))
    assert [] == lines.lines([STARTING], 101.0 + REMIND_S)
    assert 1 == len(lines.lines([STARTING], 100.0 + 2 * REMIND_S))


@pytest.mark.parametrize("state", [WorkerState.FAILED, WorkerState.BACKOFF, WorkerState.UNHEALTHY])
def test_a_failure_is_said_with_its_reason(state: WorkerState) -> None:
    (line,) = ProgressLines().lines([replace(STARTING, state=state, last_failure="set max_model_len to 4096")], 120.0)

    assert "set max_model_len to 4096" in line


def test_a_worker_that_has_not_begun_is_not_mentioned() -> None:
    assert [] == ProgressLines().lines([replace(STARTING, state=WorkerState.STOPPED)], 100.0)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0:00"), (0, "0:00"), (59.9, "0:59"), (60, "1:00"), (3599, "59:59"), (3661, "1:01:01")]
)
def test_elapsed_is_read_at_a_glance(seconds: float, shown: str) -> None:
    assert shown == elapsed(seconds)


def test_the_block_has_everything_to_go_on_with() -> None:
    """URL, a curl line and an SDK snippet that name the model, metrics; NO_PROXY only where a proxy is set."""
    plain = serving_block(ADDRESSES, ["it's", "other"], proxied=False)
    proxied = serving_block(ADDRESSES, ["m"], proxied=True)

    for expected in (
        "http://127.0.0.1:8000/v1\n",
        "http://127.0.0.1:8001/metrics",
        "curl http://127.0.0.1:8000/v1/chat/completions",
        "from openai import OpenAI",
        """'{"model": "it'"'"'s",""",
        'model="it\'s"',
        "it's, other",
    ):
        assert expected in plain
    assert "KEY" not in plain
    keyed = serving_block(ADDRESSES, ["m"], proxied=False, keys=True)
    for expected in (
        'curl http://127.0.0.1:8000/v1/chat/completions -H "Authorization: Bearer $KEY"',
        'environ["KEY"]',
    ):
        assert expected in keyed
    assert "NO_PROXY" not in plain
    assert "export NO_PROXY=127.0.0.1,localhost" in proxied


def told(console: Console, watcher: ConsoleWatcher) -> str:
    watcher.listening(ADDRESSES)
    watcher.changed([STARTING])
    watcher.changed([replace(STARTING, state=WorkerState.FAILED, last_failure="[/] is no [bold]markup[/bold]")])
    watcher.serving()
    watcher.stopping("SIGINT")
    watcher.stopped(1.26, ())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_console_prints_lines_without_interpreting_them() -> None:
    """Failures quote foreign text, which may look like markup; the last line says that nothing is left."""
    console = Console(file=io.StringIO(), width=200)
    text = told(console, ConsoleWatcher(console, SystemClock(), ["m"], proxied=False))

    assert "[/] is no [bold]markup[/bold]" in text
    assert "stopping (SIGINT)" in text
    assert "stopped after 1.3 s, no process left" == text.splitlines()[-1]


def test_what_cannot_be_killed_is_admitted() -> None:
    console = Console(file=io.StringIO(), width=200)
    ConsoleWatcher(console, SystemClock(), ["m"], proxied=False).stopped(29.0, (17, 18))

    assert isinstance(console.file, io.StringIO)
    assert "17 18" in console.file.getvalue()
    assert "no process left" not in console.file.getvalue()


def test_a_terminal_that_is_gone_costs_lines_and_nothing_else() -> None:
    """The fleet goes on serving after its terminal was closed."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    console = Console(file=Gone(), width=200)
    watcher = ConsoleWatcher(console, SystemClock(), ["m"], proxied=False)
    watcher.listening(ADDRESSES)
    watcher.changed([STARTING])
    watcher.stopped(1.0, ())


@pytest.mark.anyio
async def test_a_terminal_shows_one_row_per_worker_and_then_lines() -> None:
    """The table follows the start and is gone once everything serves; what comes later is lines."""
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    watcher = ConsoleWatcher(console, SystemClock(), ["m"], proxied=False)
    assert isinstance(console.file, io.StringIO)
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        watcher.listening(ADDRESSES)
        watcher.changed([STARTING, replace(STARTING, name="m-1", phase="warming [up]")])
        table = console.file.getvalue()
        watcher.serving()
        watcher.changed([replace(STARTING, state=WorkerState.UNHEALTHY, last_failure="no answer")])
        group.cancel_scope.cancel()
    later = console.file.getvalue()[len(table) :]

    assert "loading weights (45%)" in table
    assert "warming [up]" in table
    assert "Serving m" in later
    assert "m-0" in later
    assert "unhealthy: no answer" in later
    assert console.file.getvalue().count("\x1b[?25l") == console.file.getvalue().count("\x1b[?25h"), "cursor given back"


def test_who_came_by_ssh_is_told_how_to_see_the_console() -> None:
    """The line to copy names the admin port; who sits at the machine gets the address alone."""
    far = serving_block(ADDRESSES, ["m"], proxied=False, remote=True)
    near = serving_block(ADDRESSES, ["m"], proxied=False)

    assert f"console  {ADDRESSES.admin}/console" in near
    assert "ssh" not in near
    port = ADDRESSES.admin.rpartition(":")[2]
    assert f"ssh -L {port}:127.0.0.1:{port} USER@HOST" in far
