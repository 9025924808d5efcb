"""One run as one HTML file that needs nothing else: no network, no server, no second file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from loadtest.report import definitions, words
from loadtest.report.rescore import rescore
from loadtest.report.sections import Chart, Run, gap_charts, latency_charts, load_charts, timeline_charts
from loadtest.report.tables import (
    PageTable,
    comparison_table,
    durations_table,
    failures_table,
    groups_table,
    slowest_table,
    thresholds_table,
    tiles,
    vllm_table,
)
from loadtest.result import RunResult

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("scales.js", "draw.js", "page.js")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence, and what stands below: tables, then charts, then lists of (name, value)."""

    id: str
    title: str
    text: str = ""
    tables: tuple[PageTable, ...] = ()
    charts: tuple[Chart, ...] = ()
    lists: tuple[list[tuple[str, str]], ...] = ()
    layout: str = "stack"


def report_html(result: RunResult, other: RunResult | None = None) -> str:
    """The page of a run; with another one, that one is what it is compared with."""
    run = Run.of("this run", result)
    before = None if other is None else Run.of("other run", other)
    sections = [section for section in _sections(run, before) if section.tables or section.charts or section.lists]
    charts = [chart for section in sections for chart in section.charts]
    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("report.html.j2").render(
        title=_title(result, other),
        subtitle=_subtitle(result),
        valid=result.health.valid,
        verdict=words.verdict(result),
        notices=[*words.notices(result, run.figures), *_notices_of_comparison(other)],
        tiles=tiles(result, run.figures, before.figures if before else None),
        sections=sections,
        # All three are ours, and data cannot end the script: no "<" is left in it.
        style=Markup((PAGE / "style.css").read_text(encoding="utf-8")),
        script=Markup("\n".join((PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS)),
        charts=Markup(json.dumps(charts, separators=(",", ":")).replace("<", "\\u003c")),
    )


def _sections(run: Run, other: Run | None) -> list[Section]:
    result, found = run.result, run.figures
    score = rescore(result.ledger.records)
    failures, thresholds = failures_table(result), thresholds_table(result)
    groups = (
        groups_table(found, "kind", lambda record: record.kind),
        groups_table(found, "tenant", lambda record: record.tenant),
        slowest_table(found),
    )
    compared = (comparison_table(found, other.figures, _heading(run), _heading(other)),) if other else ()
    return [
        Section("comparison", "Comparison", definitions.COMPARISON, compared),
        Section("thresholds", "Thresholds", definitions.THRESHOLDS, (thresholds,) if thresholds else ()),
        Section(
            "latency",
            "Latency",
            f"Successes among requests due in the {words.window_words(found)}. {words.THIN}.",
            (durations_table(found),),
            tuple(latency_charts(run, other)),
            layout="pair",
        ),
        Section("timeline", "Timeline", definitions.TIMELINE, charts=tuple(timeline_charts(run))),
        Section("gaps", "Gaps", definitions.GAPS, charts=tuple(gap_charts(run))),
        Section("load", "Load", definitions.LOAD, charts=tuple(load_charts(run, other)), layout="pair"),
        Section("failures", "Failures", words.balance(result) + ".", (failures,) if failures else ()),
        Section("requests", "Requests", definitions.REQUESTS, tuple(table for table in groups if table)),
        Section(
            "elsewhere",
            "As vLLM's benchmark would say",
            definitions.ELSEWHERE if score else "",
            (vllm_table(score, found),) if score else (),
            lists=(definitions.vllm_facts(score),) if score else (),
        ),
        Section(
            "settings",
            "Settings and definitions",
            lists=(definitions.settings_list(result), definitions.definitions_list(result, found)),
        ),
    ]


def _title(result: RunResult, other: RunResult | None) -> str:
    title = f"Load test: {result.settings.get('scenario', 'run')}"
    return title if other is None else f"{title}, compared"


def _subtitle(result: RunResult) -> list[str]:
    settings: dict[str, Any] = result.settings
    what = " at ".join(str(settings[name]) for name in ("model", "target") if settings.get(name))
    facts = [str(settings["started"])] if settings.get("started") else []
    if settings.get("duration_s"):
        facts.append(f"{words.duration(float(settings['duration_s']))} of load")
    if settings.get("arrivals"):
        facts.append("closed loop" if settings["arrivals"] == "closed" else f"open loop, {settings['arrivals']}")
    if settings.get("users"):
        facts.append(f"{settings['users']} users")
    return [line for line in (what, " · ".join(facts)) if line]


def _heading(run: Run) -> str:
    started = run.result.settings.get("started")
    return f"{run.label}, {started}" if started else run.label


def _notices_of_comparison(other: RunResult | None) -> list[str]:
    if other is None or other.health.valid:
        return []
    return [f"The other run is INVALID: {' '.join(words.verdict(other))}"]
