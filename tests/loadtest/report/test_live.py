"""Progress: a panel on a terminal that leaves no trace, plain lines elsewhere, and nothing between two updates."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.report.live import LiveProgress
from loadtest.result import TimelineSample


def sample(at_s: float, **changes: object) -> TimelineSample:
    counts = {"scheduled": 10, "sent": 10, "ok": 6, "failed": 1, "unsent": 2, "in_flight": 1, "token_events": 400}
    rest = {"output_tokens": 400, "ttft_p50_s": 0.05, "send_lag_max_s": 0.0004}
    return TimelineSample(at_s=at_s, **{**counts, **rest, **changes})  # type: ignore[arg-type]


def ledger_with_ttft(*ttfts_s: float) -> Ledger:
    return Ledger.of(
        RequestRecord("id", 0.0, Outcome.OK, sent_s=0.0, first_token_s=ttft, last_token_s=1.0, ended_s=1.0)
        for ttft in ttfts_s
    )


def test_without_a_terminal_there_is_a_line_every_five_seconds() -> None:
    """Of updates every second; with rates, counts, TTFT, lag and the time left."""
    out = io.StringIO()
    with LiveProgress(Console(file=out, width=80), "chat", 12.0) as live:
        for second in range(1, 15):
            live.update(sample(second + 0.001), ledger_with_ttft())
    lines = out.getvalue().splitlines()

    assert 3 == len(lines)
    assert "0:01 sent 9.99/s, in flight 1, ok 6, failed 1, unsent 2, TTFT p50 50.0 ms" in lines[0]
    assert "send lag 400 µs, 0:11 left" in lines[0]
    assert "\x1b" not in out.getvalue()


def test_after_the_end_it_says_what_it_waits_for() -> None:
    """The duration is over, streams are not."""
    out = io.StringIO()
    with LiveProgress(Console(file=out, width=80), "chat", 3.0) as live:
        live.update(sample(4.0, in_flight=7), Ledger())

    assert out.getvalue().rstrip().endswith("finishing 7 in flight")


def test_a_terminal_gets_one_panel_that_is_gone_in_the_end() -> None:
    """Title, figures, bar; drawn by updates alone; the cursor is given back."""
    out = io.StringIO()
    console = Console(file=out, width=100, height=30, force_terminal=True)
    with LiveProgress(console, "chat: model at somewhere", 10.0) as live:
        empty = out.getvalue()
        live.update(sample(5.0), ledger_with_ttft(0.1, 0.2, 0.9))
        drawn = out.getvalue()[len(empty) :]

    assert "chat: model at somewhere" in drawn
    assert "0:05 left" in drawn
    assert "900 ms" in drawn  # p95 of the requests that ended lately
    assert "━" in drawn
    assert "\x1b[?25h" in out.getvalue()[len(empty) + len(drawn) :]


def test_ttft_is_that_of_the_last_seconds() -> None:
    """An early slow start must not colour the display for the rest of an hour."""
    out = io.StringIO()
    ledger = ledger_with_ttft(9.0)
    with LiveProgress(Console(file=out, width=80), "chat", 60.0) as live:
        live.update(sample(1.0), ledger)
        ledger.schedule()
        late = RequestRecord("id", 20.0, Outcome.OK, sent_s=20.0, first_token_s=20.1, last_token_s=21.0, ended_s=21.0)
        ledger.settle(late)
        live.update(sample(22.0), ledger)
    lines = out.getvalue().splitlines()

    assert "TTFT p50 9.00 s" in lines[0]
    assert "TTFT p50 100 ms" in lines[1]


def test_tokens_per_second_are_tokens_also_when_an_event_carries_several() -> None:
    """Events as they come, times the tokens per event of the answers so far."""
    out = io.StringIO()
    times = {"sent_s": 0.0, "first_token_s": 0.1, "last_token_s": 0.5, "ended_s": 0.5}
    answer = RequestRecord("id", 0.0, Outcome.OK, **times, token_events=10, output_tokens=40)  # type: ignore[arg-type]
    with LiveProgress(Console(file=out, width=80), "chat", 60.0) as live:
        live.update(sample(1.0, token_events=50), Ledger())
        live.update(sample(6.0, token_events=550), Ledger.of([answer]))
    lines = out.getvalue().splitlines()

    assert "tokens/s 50.0" in lines[0]
    assert "tokens/s 400" in lines[1]


@pytest.mark.parametrize("terminal", [True, False])
def test_an_exception_leaves_the_terminal_usable(terminal: bool) -> None:
    """Ctrl-C in the middle of a run."""
    out = io.StringIO()
    console = Console(file=out, width=80, height=20, force_terminal=terminal)

    def interrupted() -> None:
        with LiveProgress(console, "chat", 10.0) as live:
            live.update(sample(1.0), Ledger())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h")
