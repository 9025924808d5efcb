"""What set-up tells the person who waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class SetupProgress:
    """
    One thing that set-up has begun or come further with.

    `subject` is what is being set up (`engine`), `step` what is being done (`downloading`), `detail` to what.
    `done` of `total` counts requirements; None where nothing is counted. `notable` lines are always shown; the others
    may be thinned out.
    """

    subject: str
    step: str
    detail: str = ""
    done: int | None = None
    total: int | None = None
    notable: bool = True


Report = Callable[[SetupProgress], None]


def progress_line(progress: SetupProgress, elapsed_s: float) -> str:
    """The line for a terminal: `engine    0:42  installing 12/155  numpy 2.3.5`."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    count = "" if progress.done is None else f" {progress.done}/{progress.total}"
    detail = f"  {progress.detail}" if progress.detail else ""
    return f"{progress.subject:<8} {minutes:>3}:{seconds:02}  {progress.step}{count}{detail}"


class ProgressPrinter:
    """
    Prints progress as lines with the time since its creation.

    Lines that are not notable come at most every `every_s` seconds, so that a log file stays readable.
    """

    def __init__(
        self, stream: TextIO, *, every_s: float = 2.0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every_s = every_s
        self._monotonic = monotonic
        self._began_s = monotonic()
        self._printed_s = self._began_s - every_s

    def __call__(self, progress: SetupProgress) -> None:
        now_s = self._monotonic()
        if not progress.notable and now_s - self._printed_s < self._every_s:
            return
        self._printed_s = now_s
        print(progress_line(progress, now_s - self._began_s), file=self._stream, flush=True)
