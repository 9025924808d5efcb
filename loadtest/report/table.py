"""What a run prints at its end: verdict, durations, rates, attainment, failures."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtest.report import words
from loadtest.report.figures import PERCENTILES, DurationRow, Figures, figures
from loadtest.result import RunResult

WIDE = 96
"""Columns of a terminal that has room for every percentile."""
NARROW_PERCENTILES = (0.5, 0.95, 0.99)


def print_summary(console: Console, result: RunResult) -> None:
    """One table of durations in the steady window, and a line for everything else that a reader must see."""
    found = figures(result)
    console.print(_durations(found, console.width))
    if any(words.mark(row.histogram, p) for row in shown_rows(found) for p in PERCENTILES):
        console.print(words.THIN, style="dim", highlight=False)
    if any(row.twice for row in found.rows):
        console.print(
            f"lost: failed or unsent, counted as infinitely slow ({words.INFINITE})", style="dim", highlight=False
        )
    rates = found.rates
    console.print(
        f"{words.digits(rates.requests)} requests/s, {words.digits(rates.output_tokens)} output tokens/s, "
        f"{words.digits(rates.prompt_tokens)} prompt tokens/s ({words.window_words(found)})",
        highlight=False,
    )
    if found.attainment is not None:
        console.print(f"attainment: {words.attainment_words(found.attainment)}", highlight=False)
    console.print(words.balance(result), highlight=False)
    ledger = result.ledger
    for name, count in ledger.failures.most_common():
        console.print(f"  {count} × {name}: {ledger.samples[name]}", markup=False, highlight=False)
    for reason, count in ledger.unsent_reasons.most_common():
        console.print(f"  {count} × unsent: {reason}", markup=False, highlight=False)
    for notice in words.notices(result, found):
        console.print(f"  {notice}", style="yellow", markup=False, highlight=False)
    style, verdict = ("green", "VALID") if result.health.valid else ("bold red", "INVALID")
    console.print(
        f"[{style}]{verdict}[/] {escape(' '.join(words.verdict(result)))}",
        highlight=False,
    )


def shown_rows(found: Figures) -> list[DurationRow]:
    """Rows that say something: with samples, and not what the row above says already."""
    rows = [row for row in found.rows if row.histogram.count]
    ttft = found.row("ttft").histogram
    hidden = {row.name for row in rows if row.name == "ttfvt" and row.histogram.buckets == ttft.buckets}
    return [row for row in rows if row.name not in hidden] or [found.row("e2e")]


def _durations(found: Figures, width: int) -> Table:
    """Fits 80 columns; where there is room it has more percentiles."""
    percentiles = PERCENTILES if width >= WIDE else NARROW_PERCENTILES
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("milliseconds", no_wrap=True)
    for heading in ("mean", *map(words.percent_name, percentiles), "max", "samples"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in shown_rows(found):
        histogram = row.histogram
        cells = [words.mark(histogram, p) + words.milliseconds(row.percentile(p)) for p in percentiles]
        largest = words.milliseconds(histogram.max if histogram.count else None)
        table.add_row(row.label, words.milliseconds(histogram.mean), *cells, largest, str(histogram.count))
        if row.twice:
            infinite = [words.milliseconds(row.percentile_with_lost(p)) for p in percentiles]
            label = f"… {row.lost} lost as {words.INFINITE}"
            table.add_row(label, "", *infinite, words.INFINITE, str(histogram.count + row.lost), style="dim")
    return table
