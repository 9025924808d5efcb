"""
Progress while a run lasts: a panel that is drawn anew on a terminal, a line every five seconds anywhere else.

It only draws when told to: a refresh thread of its own would run in the middle of somebody's measurement.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadtest.ledger import Ledger
from loadtest.report import words
from loadtest.report.series import quantile
from loadtest.result import TimelineSample

LINE_EVERY_S = 5.0
RECENT_S = 10.0
"""TTFT is that of requests which got their first token in the last so many seconds."""


class LiveProgress:
    """Shows one run inside a `with` block; `update` is called about once a second."""

    def __init__(self, console: Console, title: str, duration_s: float) -> None:
        self._console, self._title, self._duration_s = console, title, duration_s
        # Frames are drawn by `update` alone; cursor and screen are rich's to restore, whatever happens.
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._before = TimelineSample(0.0, 0, 0, 0, 0, 0, 0, 0, 0, None, 0.0)
        self._read = self._tokens = self._events = 0
        self._recent: deque[tuple[float, float]] = deque()
        self._next_line_s = 0.0

    def __enter__(self) -> LiveProgress:
        """Takes the terminal's last lines."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clears the panel: what stays on the terminal is the final table."""
        if self._live is not None:
            self._live.stop()

    def update(self, sample: TimelineSample, ledger: Ledger) -> None:
        """Draws the state of the run, or prints it where that is due."""
        state = self._state(sample, ledger)
        if self._live is not None:
            self._live.update(self._panel(sample, state), refresh=True)
        elif sample.at_s >= self._next_line_s:
            self._next_line_s = sample.at_s + LINE_EVERY_S - 0.5  # samples are never a whole second apart
            line = ", ".join(f"{name} {value}".strip() for name, value in state)
            text = f"{words.clock(sample.at_s)} {line}, {self._left(sample)}"
            self._console.print(text, highlight=False, soft_wrap=True)  # one line a report, whatever the width
        self._before = sample

    def _state(self, sample: TimelineSample, ledger: Ledger) -> list[tuple[str, str]]:
        before, seconds = self._before, max(sample.at_s - self._before.at_s, 1e-9)
        for record in ledger.records[self._read :]:
            if record.first_token_s is not None and record.ttft_s is not None:
                self._recent.append((record.ended_s, record.ttft_s))
            if record.output_tokens and record.token_events:
                self._tokens += record.output_tokens
                self._events += record.token_events
        self._read = len(ledger.records)
        while self._recent and self._recent[0][0] < sample.at_s - RECENT_S:
            self._recent.popleft()
        ttfts = sorted(ttft for _, ttft in self._recent)
        p50 = quantile(ttfts, 0.5) if ttfts else sample.ttft_p50_s
        # Events arrive all the time, tokens are told at the end of an answer: events times the tokens of one so far.
        per_event = self._tokens / self._events if self._events else 1.0
        tokens = (sample.token_events - before.token_events) / seconds * per_event
        state = [
            ("sent", f"{words.digits((sample.sent - before.sent) / seconds)}/s"),
            ("in flight", f"{sample.in_flight:,}"),
            ("ok", f"{sample.ok:,}"),
            ("failed", f"{sample.failed:,}"),
            ("unsent", f"{sample.unsent:,}"),
            ("TTFT p50", words.duration(p50)),
            ("p95", words.duration(quantile(ttfts, 0.95))),
            ("tokens/s", words.digits(tokens)),
            ("send lag", words.duration(sample.send_lag_max_s)),
        ]
        if sample.cancelled:
            state.insert(3, ("cancelled", f"{sample.cancelled:,}"))
        if sample.users is not None:
            state.insert(0, ("users", f"{sample.users:,}"))
        return state

    def _left(self, sample: TimelineSample) -> str:
        left = self._duration_s - sample.at_s
        return f"{words.clock(left)} left" if left > 0 else f"finishing {sample.in_flight:,} in flight"

    def _panel(self, sample: TimelineSample, state: list[tuple[str, str]]) -> Panel:
        cells = []
        for name, value in state:
            bad = name in ("failed", "unsent") and value != "0"
            cells.append(Text.assemble((f"{name} ", "dim"), (value, "bold red" if bad else "bold"), no_wrap=True))
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        done = min(sample.at_s, self._duration_s)
        bar.add_row(ProgressBar(total=self._duration_s, completed=done), self._left(sample))
        return Panel(
            Group(Columns(cells, padding=(0, 3)), bar), title=Text(self._title), title_align="left", border_style="dim"
        )
