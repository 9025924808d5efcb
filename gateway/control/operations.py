"""What the supervisor does on request over minutes, one thing at a time: a reload, a rolling restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import msgspec

from gateway.errors import GatewayError


class Busy(GatewayError):
    """Another operation is under way."""


class OperationReport(msgspec.Struct, frozen=True):
    """
    The latest operation: `name` in words, what it has said so far, and how it ended.

    `number` grows with every operation; 0: there was none.
    """

    number: int = 0
    name: str = ""
    lines: tuple[str, ...] = ()
    running: bool = False
    failed: bool = False


Job = Callable[["Progress"], Awaitable[None]]


class Progress:
    """Where a job says how it goes. A job that raises GatewayError has failed too, with the error as its last line."""

    def __init__(self, number: int, name: str, on_line: Callable[[str, str, bool], None]) -> None:
        self._number = number
        self._name = name
        self._on_line = on_line
        self._lines: list[str] = []
        self._running = True
        self._failed = False

    def say(self, line: str) -> None:
        """One more sentence."""
        self._lines.append(line)
        self._on_line(self._name, line, False)

    def fail(self, line: str) -> None:
        """Something went wrong; the job may go on."""
        self._failed = True
        self._lines.append(line)
        self._on_line(self._name, line, True)

    def end(self) -> None:
        """Nothing more will be said."""
        self._running = False

    def report(self) -> OperationReport:
        """As of now."""
        return OperationReport(self._number, self._name, tuple(self._lines), self._running, self._failed)


@dataclass(frozen=True, slots=True)
class _Begun:
    job: Job
    progress: Progress


class Operations:
    """
    Runs jobs one at a time, in the task that calls `run`.

    Args:
        on_line: Told every sentence: operation, sentence, and whether it tells of a failure (for the log).
    """

    def __init__(self, on_line: Callable[[str, str, bool], None]) -> None:
        self._on_line = on_line
        self._number = 0
        self._waiting: _Begun | None = None
        self._current: Progress | None = None
        self._begun = anyio.Event()

    @property
    def latest(self) -> OperationReport:
        """The operation that runs, or the last that ran."""
        return self._current.report() if self._current is not None else OperationReport()

    def begin(self, name: str, job: Job) -> OperationReport:
        """
        Start a job; returns at once.

        Raises Busy while another one runs.
        """
        if self.latest.running:
            raise Busy(f"a {self.latest.name} is under way; `gateway status` shows how far it is")
        self._number += 1
        self._current = Progress(self._number, name, self._on_line)
        self._waiting = _Begun(job, self._current)
        self._begun.set()
        return self._current.report()

    async def run(self) -> None:
        """Carry out jobs until cancelled."""
        while True:
            await self._begun.wait()
            self._begun = anyio.Event()
            begun, self._waiting = self._waiting, None
            if begun is None:
                continue
            try:
                await begun.job(begun.progress)
            except (GatewayError, OSError) as exc:
                begun.progress.fail(str(exc))
            finally:
                begun.progress.end()
