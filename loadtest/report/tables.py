"""Tiles and tables of the page, as plain data: every cell is finished text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadtest.ledger import Ledger, RequestRecord, failure_class
from loadtest.objectives import missed_objectives, objective_texts
from loadtest.outcomes import Outcome
from loadtest.report import words
from loadtest.report.figures import PERCENTILES, DurationRow, Figures
from loadtest.report.rescore import PERCENTILES as VLLM_PERCENTILES
from loadtest.report.rescore import Spread, VllmScore
from loadtest.report.table import shown_rows
from loadtest.result import RunResult

Tone = Literal["", "good", "bad", "better", "worse"]

SLOWEST = 5


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure to be read from afar. `was` compares it with another run."""

    name: str
    value: str
    unit: str = ""
    note: str = ""
    tone: Tone = ""
    was: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Cells from left to right. `note` stands below the first, `tone` colours the one that is `toned`."""

    cells: tuple[str, ...]
    note: str = ""
    minor: bool = False
    tone: Tone = ""
    toned: int = 0


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table; `texts` are the columns of prose, the others are figures."""

    name: str
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    texts: frozenset[int] = field(default_factory=frozenset)


def tiles(result: RunResult, found: Figures, other: Figures | None) -> list[Tile]:
    """What a reader wants first."""
    rates, ledger, lost = found.rates, found.ledger, found.lost
    due = ledger.scheduled - ledger.cancelled

    def compared(get: Callable[[Figures], float | None], show: Callable[[float | None], str]) -> str:
        return "" if other is None else f"other run {show(get(other))} ({_change(get(found), get(other))})"

    def rate(name: str, get: Callable[[Figures], float], note: str) -> Tile:
        return Tile(name, words.digits(get(found)), "/s", note, was=compared(get, _rate))

    def latency(name: str, row_name: str) -> Tile:
        row = found.row(row_name)
        note = " · ".join(
            f"{words.percent_name(p)} {words.mark(row.histogram, p)}{words.duration(row.percentile(p))}"
            for p in (0.95, 0.99)
        )
        value, _, unit = words.duration(row.percentile(0.5)).partition(" ")
        was = compared(lambda figures: figures.row(row_name).percentile(0.5), words.duration)
        value = words.mark(row.histogram, 0.5) + value
        return Tile(f"{name} · p50", value, unit, note if row.histogram.count else "no samples", was=was)

    shown = [rate("Answered requests", lambda figures: figures.rates.requests, f"{ledger.ok:,} of {due:,} due")]
    if rates.output_tokens:
        note = f"and {words.digits(rates.prompt_tokens)} prompt tokens/s"
        shown.append(rate("Output tokens", lambda figures: figures.rates.output_tokens, note))
    elif rates.prompt_tokens:
        shown.append(rate("Prompt tokens", lambda figures: figures.rates.prompt_tokens, "no output tokens"))
    shown += [
        latency(name, row)
        for name, row in (
            ("First token", "ttft"),
            ("Gap between tokens", "gaps"),
            ("Per output token", "tpot"),
            ("End to end", "e2e"),
        )
        if found.row(row).histogram.count or row == "e2e"
    ]
    lost_share = words.share(lost / due if due else None)
    note = f"{ledger.failed:,} failed · {ledger.unsent:,} unsent"
    shown.append(Tile("Failed or unsent", *_split(lost_share), note, "bad" if lost else ""))
    if found.attainment is not None:
        note = f"{words.digits(found.attainment.good_per_s)} good requests/s"
        shown.append(Tile("Attainment", *_split(words.share(found.attainment.share)), note))
    else:
        mean = words.digits(rates.mean_in_flight) if not math.isnan(rates.mean_in_flight) else words.NOTHING
        peak = max((sample.in_flight for sample in result.timeline), default=0)
        shown.append(Tile("In flight", mean, "", f"mean; at most {peak:,}"))
    return shown


def _split(text: str) -> tuple[str, str]:
    value, _, unit = text.partition(" ")
    return value, unit


def _rate(value: float | None) -> str:
    return words.NOTHING if value is None else f"{words.digits(value)}/s"


def _change(now: float | None, before: float | None) -> str:
    if now is None or not before or math.isinf(now) or math.isinf(before):
        return words.NOTHING
    return f"{now / before - 1:+.1%}".replace("%", " %").replace("-", "−")


def durations_table(found: Figures) -> PageTable:
    """Percentiles of successes, and below them those with failures as infinite."""
    rows = []
    for row in shown_rows(found):
        histogram = row.histogram
        cells = [words.mark(histogram, p) + words.milliseconds(row.percentile(p)) for p in PERCENTILES]
        largest = words.milliseconds(histogram.max if histogram.count else None)
        mean = words.milliseconds(histogram.mean)
        rows.append(Row((row.label, mean, *cells, largest, f"{histogram.count:,}"), note=row.meaning))
        if row.twice:
            infinite = [words.milliseconds(row.percentile_with_lost(p)) for p in PERCENTILES]
            label = f"with {row.lost:,} failed or unsent as {words.INFINITE}"
            count = f"{histogram.count + row.lost:,}"
            rows.append(Row((label, words.NOTHING, *infinite, words.INFINITE, count), minor=True))
    headings = ("milliseconds", "mean", *map(words.percent_name, PERCENTILES), "max", "samples")
    return PageTable("durations", headings, tuple(rows))


def comparison_table(found: Figures, other: Figures, this_heading: str, other_heading: str) -> PageTable:
    """This run beside the other one, and what changed."""
    rows = [
        _compared("answered requests/s", found.rates.requests, other.rates.requests, words.digits, more_is_better=True),
        _compared(
            "output tokens/s",
            found.rates.output_tokens,
            other.rates.output_tokens,
            words.digits,
            more_is_better=True,
        ),
    ]
    for row in shown_rows(found):
        twin = other.row(row.name)
        for p in (0.5, 0.95, 0.99):
            thin = words.mark(row.histogram, p) or words.mark(twin.histogram, p)
            name = f"{row.label}, {thin}{words.percent_name(p)}"
            rows.append(_compared(name, row.percentile(p), twin.percentile(p), words.duration, more_is_better=False))
    now, before = ((f.lost / max(f.ledger.scheduled - f.ledger.cancelled, 1)) for f in (found, other))
    rows.append(_compared("failed or unsent", now, before, words.share, more_is_better=False))
    return PageTable("comparison", ("figure", other_heading, this_heading, "change"), tuple(rows))


def _compared(
    name: str,
    now: float | None,
    before: float | None,
    show: Callable[[float], str],
    *,
    more_is_better: bool,
) -> Row:
    texts = tuple(words.NOTHING if value is None else show(value) for value in (before, now))
    tone: Tone = ""
    if now is not None and before is not None and texts[0] != texts[1]:
        tone = "better" if (now > before) is more_is_better else "worse"
    return Row((name, *texts, _change(now, before)), tone=tone, toned=3)


def thresholds_table(result: RunResult) -> PageTable | None:
    """Each threshold and whether the run met it; None without any."""
    if not result.objectives:
        return None
    # Sentences begin with the threshold's name; that there is one is what decides, as for the exit code.
    missed = {text.partition(": ")[0]: text.partition(": ")[2] for text in missed_objectives(result)}
    rows = []
    for name, text in zip(result.objectives, objective_texts(result.objectives), strict=True):
        tone: Tone = "worse" if name in missed else "better"
        verdict = "missed" if name in missed else "met"
        rows.append(Row((text, verdict, missed.get(name, "")), tone=tone, toned=1))
    return PageTable("thresholds", ("threshold", "verdict", "why"), tuple(rows), frozenset({2}))


def failures_table(result: RunResult) -> PageTable | None:
    """Failures by class, unsent ones by reason; None when there are none."""
    ledger = result.ledger
    if not ledger.failed and not ledger.unsent:
        return None
    times: dict[str, list[float]] = {}
    for record in ledger.records:
        if record.outcome not in (Outcome.OK, Outcome.CANCELLED):
            name = f"unsent: {record.detail}" if record.outcome is Outcome.UNSENT else failure_class(record)
            times.setdefault(name, []).append(record.scheduled_s)
    classes = [(name, count, ledger.samples.get(name, "")) for name, count in ledger.failures.most_common()]
    classes += [(f"unsent: {reason}", count, "") for reason, count in ledger.unsent_reasons.most_common()]
    rows = tuple(
        Row((name, f"{count:,}", words.share(count / ledger.scheduled), _span(times.get(name, [])), sample))
        for name, count, sample in classes
    )
    return PageTable("failures", ("class", "requests", "of all", "due at", "first seen"), rows, frozenset({4}))


def _span(moments: Sequence[float]) -> str:
    if not moments:
        return words.NOTHING
    low, high = min(moments), max(moments)
    return f"{low:.1f} s" if len(moments) == 1 else f"{low:.1f} to {high:.1f} s"


def groups_table(found: Figures, name: str, get: Callable[[RequestRecord], str | None]) -> PageTable | None:
    """The window's requests by kind, or by tenant; None when all are alike."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in found.ledger.records:
        groups.setdefault(get(record) or words.NOTHING, []).append(record)
    if len(groups) < 2:
        return None
    rows = []
    for label, records in sorted(groups.items()):
        ledger = Ledger.of(records)
        durations = ledger.durations
        cells = [
            words.mark(histogram, p) + words.duration(histogram.percentile(p))
            for histogram, p in (
                (durations.ttft, 0.5),
                (durations.ttft, 0.95),
                (durations.gaps, 0.95),
                (durations.e2e, 0.5),
                (durations.e2e, 0.95),
            )
        ]
        counts = (f"{ledger.scheduled:,}", f"{ledger.failed + ledger.unsent:,}")
        rows.append(Row((label, *counts, *cells, f"{ledger.output_tokens:,}")))
    durations_heads = ("TTFT p50", "TTFT p95", "gap p95", "end to end p50", "end to end p95")
    return PageTable(
        f"by {name}", (name, "requests", "failed or unsent", *durations_heads, "output tokens"), tuple(rows)
    )


def slowest_table(found: Figures) -> PageTable | None:
    """The worst requests by TTFT, largest gap and end to end, to be looked up in the server's log."""
    rows = []
    measures: tuple[tuple[str, Callable[[RequestRecord], float | None]], ...] = (
        ("TTFT", lambda record: record.ttft_s),
        ("largest gap", lambda record: max(record.gaps_s, default=None)),
        ("end to end", lambda record: record.e2e_s),
    )
    for name, get in measures:
        measured = [(value, r) for r in found.ledger.records if r.outcome is Outcome.OK and (value := get(r))]
        for value, record in sorted(measured, key=lambda pair: -pair[0])[:SLOWEST]:
            tokens = words.NOTHING if record.output_tokens is None else f"{record.output_tokens:,}"
            prompt = words.NOTHING if record.prompt_tokens is None else f"{record.prompt_tokens:,}"
            due = f"{record.scheduled_s:.2f} s"
            rows.append(Row((name, words.duration(value), due, record.kind, prompt, tokens, record.request_id)))
    headings = ("slowest by", "took", "due at", "kind", "prompt tokens", "output tokens", "request id")
    return PageTable("slowest requests", headings, tuple(rows), frozenset({6})) if rows else None


def vllm_table(score: VllmScore, found: Figures) -> PageTable:
    """vLLM's figures beside the one of ours that is nearest."""

    def spread(name: str, theirs: Spread, ours: DurationRow) -> Row:
        cells = [f"{theirs.mean:.2f}", *(f"{theirs.percentiles[p]:.2f}" for p in VLLM_PERCENTILES)]
        median = ours.percentile(0.5)
        return Row((name, *cells, words.NOTHING if median is None else f"{median * 1000:.2f}"))

    rows = (
        spread("TTFT", score.ttft_ms, found.row("ttft")),
        spread("TPOT", score.tpot_ms, found.row("tpot")),
        spread("ITL", score.itl_ms, found.row("gaps")),
        spread("E2EL", score.e2el_ms, found.row("service")),
    )
    headings = ("milliseconds", "mean", *(f"p{p:g}" for p in VLLM_PERCENTILES), "our p50")
    return PageTable("as vLLM's benchmark would say", headings, rows)
