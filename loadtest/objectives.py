"""Thresholds of a run, such as ttft_p95=500ms: reading them, and holding a finished run against them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from loadtest.report.figures import Figures, figures
from loadtest.result import RunResult
from loadtest.target import UsageError

DURATIONS = ("ttft", "ttft_from_schedule", "ttfvt", "gaps", "itl", "tpot", "e2e", "service")
_OF_GAPS = ("gaps_p", "itl_p")
_FORM = re.compile(r"([a-z_0-9]+?)_p(\d+(?:\.\d+)?)")
_VALUE = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|%)?")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
NOTATION = (
    "NAME_pN=DURATION such as ttft_p95=500ms (" + ", ".join(DURATIONS) + "), or attainment=99% together with bounds"
)


def parse_objectives(texts: Sequence[str]) -> dict[str, float]:
    """
    Seconds by name (attainment: a share from 0 to 1).

    Raises:
        UsageError: another notation.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        match, form = _VALUE.fullmatch(value), _FORM.fullmatch(name)
        if match is None or float(match[1]) <= 0:
            raise UsageError(f"expected --slo {NOTATION}, found {text!r}")
        if name == "attainment" and match[2] == "%" and float(match[1]) <= 100:
            found[name] = float(match[1]) / 100
        elif form and form[1] in DURATIONS and 0 < float(form[2]) < 100 and match[2] in _UNITS:
            found[name] = float(match[1]) * _UNITS[match[2]]
        else:
            raise UsageError(f"expected --slo {NOTATION}, found {text!r}")
    if "attainment" in found and len(found) == 1:
        raise UsageError("expected a bound such as --slo ttft_p95=500ms beside --slo attainment, found none")
    if "attainment" in found and all(name == "attainment" or name.startswith(_OF_GAPS) for name in found):
        raise UsageError(
            "expected a bound on whole requests such as --slo ttft_p95=500ms or tpot_p95=50ms beside --slo attainment, "
            "found only bounds on gaps, which say nothing about a single request"
        )
    return found


def missed_objectives(result: RunResult) -> list[str]:
    """One sentence per threshold that the run missed. A percentile counts failed and unsent requests as infinite."""
    if not result.objectives:
        return []
    found = figures(result)
    return [text for name, limit in result.objectives.items() if (text := _missed(name, limit, found))]


def _missed(name: str, limit: float, found: Figures) -> str | None:
    if name == "attainment":
        share = found.attainment.share if found.attainment else None
        if share is not None and share >= limit:
            return None
        return f"attainment: expected at least {limit:.2%}, found {'nothing due' if share is None else f'{share:.2%}'}"
    form = _FORM.fullmatch(name)
    assert form is not None, "checked when it was read"
    value = found.row(form[1]).percentile_with_lost(float(form[2]) / 100)
    if value is not None and value <= limit:
        return None
    shown = "no samples" if value is None else "infinite: too many failed" if math.isinf(value) else _duration(value)
    return f"{name}: expected at most {_duration(limit)}, found {shown}"


def objective_texts(objectives: Mapping[str, float]) -> list[str]:
    """As given on the command line, for titles."""
    return [
        f"{name} ≤ {_duration(limit)}" if name != "attainment" else f"attainment ≥ {limit:.2%}"
        for name, limit in objectives.items()
    ]


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
