"""The terminal of `gateway up`: lines for logs and pipes, and a table that follows the start on a terminal."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TextIO, cast

import anyio
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from gateway.clock import Clock
from gateway.control.progress import ProgressLines, elapsed, serving_block, what
from gateway.control.watcher import Addresses
from gateway.log.lines import LineQueue, writer_to
from gateway.types import WorkerState
from gateway.workers.status import WorkerStatus

_TICK_S = 1.0


class PatientConsole(Console):
    """A console that goes quiet when nobody reads it any more, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # The interpreter flushes standard output once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class UnhurriedFile(io.TextIOBase):
    """
    A terminal or pipe that is written by a thread of its own: one whose reader stands still (Ctrl-S, a pager, a stopped
    program) takes no more, and would stop whoever writes to it. Text that nobody fetches is dropped in the end.
    """

    def __init__(self, file: TextIO) -> None:
        file.flush()
        self._file = file
        self._queue = LineQueue(writer_to(file.buffer), _not_shown)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # what rich asks for
        """Of the file."""
        return self._file.encoding

    def isatty(self) -> bool:
        """Whether the file is a terminal."""
        return self._file.isatty()

    def fileno(self) -> int:
        """Of the file."""
        return self._file.fileno()

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str) -> int:
        """Queue it."""
        self._queue.put(text.encode(self._file.encoding, errors="replace"))
        return len(text)

    def close(self) -> None:
        """Write what waits, within a second; the file itself stays open."""
        if not self.closed:
            self._queue.close()
        super().close()


def _not_shown(count: int) -> bytes:
    return f"({count} messages are missing here: nobody read them)\n".encode()


@contextmanager
def unhurried(console: Console) -> Iterator[None]:
    """Within, nothing that is printed waits for whoever reads it."""
    file = console.file
    with UnhurriedFile(cast(TextIO, file)) as unhurried_file:
        console.file = cast(IO[str], unhurried_file)
        try:
            yield
        finally:
            console.file = file


class ConsoleWatcher:
    """
    Tells a person how the fleet is doing (`Watcher`).

    Until everything serves, a terminal shows one row per worker, redrawn every second. Anything else, and everything
    after, is lines. Markup is never interpreted: failures quote foreign text.

    Args:
        models: Public names.
        proxied: A proxy variable is set.
        remote: We were started over ssh.
        command: How the `gateway` command is called here.
        keys_required: Whether requests need an API key, asked when everything serves.
    """

    def __init__(
        self,
        console: Console,
        clock: Clock,
        models: Sequence[str],
        *,
        proxied: bool,
        remote: bool = False,
        keys_required: Callable[[], bool] = lambda: False,
        command: str = "gateway",
    ) -> None:
        self._console = console
        self._clock = clock
        self._models = models
        self._proxied = proxied
        self._remote = remote
        self._keys_required = keys_required
        self._command = command
        self._addresses: Addresses | None = None
        self._statuses: Sequence[WorkerStatus] = ()
        self._lines = ProgressLines()
        self._live: Live | None = None

    def listening(self, addresses: Addresses) -> None:
        """See `Watcher`."""
        self._addresses = addresses
        self._print(f"listening on {addresses.public}, starting {', '.join(self._models)}")

    def changed(self, statuses: Sequence[WorkerStatus]) -> None:
        """See `Watcher`."""
        self._statuses = statuses
        self._say()

    def serving(self) -> None:
        """See `Watcher`."""
        self._end_live()
        if self._addresses is not None:
            keys = self._keys_required()
            self._print(
                serving_block(
                    self._addresses,
                    self._models,
                    proxied=self._proxied,
                    keys=keys,
                    command=self._command,
                    remote=self._remote,
                )
            )

    def said(self, line: str) -> None:
        """See `Watcher`."""
        self._print(line)

    def stopping(self, reason: str) -> None:
        """See `Watcher`."""
        self._end_live()
        if reason in signal.Signals.__members__:
            self._print(f"stopping ({reason}): running requests may finish; once more to end them now")
        else:
            self._print(f"stopping ({reason})")

    def stopped(self, took_s: float, survivors: Sequence[int]) -> None:
        """See `Watcher`."""
        left = f"processes that cannot be killed: {' '.join(map(str, survivors))}" if survivors else "no process left"
        self._print(f"stopped after {took_s:.1f} s, {left}")

    async def run(self) -> None:
        """Redraw, and say again what takes long."""
        if self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        try:
            while True:
                await anyio.sleep(_TICK_S)
                self._say()
        finally:
            self._end_live()

    def _say(self) -> None:
        lines = self._lines.lines(self._statuses, self._clock.monotonic())
        if self._live is not None:
            with suppress(OSError):
                self._live.update(self._table(), refresh=True)
            return
        for line in lines:
            self._print(line)

    def _end_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            with suppress(OSError):
                live.stop()

    def _print(self, text: str) -> None:
        # The terminal may be gone while we serve; that must cost lines and nothing else.
        with suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        now_s = self._clock.monotonic()
        table = Table.grid(padding=(0, 2))
        for status in self._statuses:
            since_s = status.started_at_s if status.started_at_s is not None else status.changed_at_s
            mark = "✓" if status.state is WorkerState.READY else "✗" if status.state is WorkerState.FAILED else "…"
            table.add_row(mark, escape(status.name), elapsed(now_s - since_s), escape(what(status)))
        return table
