"""What a run prints and stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.histogram import DurationHistogram
from loadtest.ledger import Ledger

PERCENTILES = (0.5, 0.9, 0.95, 0.99)


def result_json(ledger: Ledger, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The whole result: settings, figures, counts, histograms, log of requests."""
    rates = {
        "requests_per_s": ledger.ok / ledger.wall_s,
        "output_tokens_per_s": ledger.output_tokens / ledger.wall_s,
        "prompt_tokens_per_s": ledger.prompt_tokens / ledger.wall_s,
    }
    summary = {
        name: {"mean_s": histogram.mean, **{_name(p): histogram.percentile(p) for p in PERCENTILES}}
        for name, _, histogram in _rows(ledger)
    }
    return {"settings": dict(settings), "rates": rates, "summary": summary, **ledger.to_json()}


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Stores a result; the folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def print_table(console: Console, ledger: Ledger) -> None:
    """One table of durations, one line of rates, one line per class of failure."""
    table = Table()
    table.add_column("milliseconds")
    for heading in ("mean", *map(_name, PERCENTILES), "max", "samples"):
        table.add_column(heading, justify="right")
    for _, label, histogram in _rows(ledger):
        cells = [_ms(histogram.mean), *(_percentile(histogram, p) for p in PERCENTILES)]
        table.add_row(label, *cells, _ms(histogram.max if histogram.count else None), str(histogram.count))
    console.print(table)
    wall = ledger.wall_s
    console.print(
        f"{ledger.ok / wall:.2f} requests/s, {ledger.output_tokens / wall:.1f} output tokens/s, "
        f"{ledger.prompt_tokens / wall:.1f} prompt tokens/s over {wall:.1f} s "
        f"(first request sent to last one ended)"
    )
    console.print(
        f"scheduled {ledger.scheduled} = ok {ledger.ok} + failed {ledger.failed} + unsent {ledger.unsent}"
        + (f"; {ledger.without_usage} without usage, not in the token rates" if ledger.without_usage else "")
    )
    for name, count in ledger.failures.most_common():
        console.print(f"  {count} × {name}: {ledger.samples[name]}", markup=False, highlight=False)
    if any(not h.well_founded(p) for _, _, h in _rows(ledger) for p in PERCENTILES):
        console.print("~ fewer than 10 / (1 - p) samples: run longer before quoting it", style="dim")


def _rows(ledger: Ledger) -> tuple[tuple[str, str, DurationHistogram], ...]:
    return (
        ("ttft", "time to first token", ledger.ttft),
        ("ttft_from_schedule", "… from schedule", ledger.ttft_from_schedule),
        ("gaps", "gap between token events", ledger.gaps),
        ("tpot", "time per output token", ledger.tpot),
        ("e2e", "end to end, from schedule", ledger.e2e),
    )


def _name(p: float) -> str:
    return f"p{p * 100:g}"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}"


def _percentile(histogram: DurationHistogram, p: float) -> str:
    return ("" if histogram.well_founded(p) else "~") + _ms(histogram.percentile(p))
