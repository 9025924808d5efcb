"""Ratios between relays, with intervals, and the bars they are held against. Pure."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from enum import StrEnum

RESAMPLES = 4000


class Judgement(StrEnum):
    """Passed and failed are certain at 95 %; an interval that holds the bar inside decides nothing."""

    PASSED = "passed"
    FAILED = "FAILED"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean of per-round ratios with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bar:
    """`figure` of ours over the peer's `figure` in `mode` must not exceed `limit`."""

    peer: str
    mode: str
    figure: str
    limit: float
    text: str


BARS = (
    Bar("vllm-router", "stream", "us", 1.0, "CPU per event"),
    Bar("vllm-router", "plain", "us", 1.0, "CPU per small request"),
    Bar("nginx", "stream", "us", 1.6, "CPU per event"),
    Bar("vllm-router", "stream", "lag_p50_ms", 1.25, "event lag p50"),
    Bar("vllm-router", "stream", "lag_p99_ms", 1.25, "event lag p99"),
    Bar("vllm-router", "light", "first_byte_p50_ms", 1.25, "first byte p50"),
    Bar("vllm-router", "light", "first_byte_p99_ms", 1.25, "first byte p99"),
)


def ratio(ours: list[float], theirs: list[float], *, seed: int = 1) -> Interval:
    """
    Mean of the ratios round by round, and its interval by bootstrap over rounds.

    Both lists are in round order: what one noisy round does to both sides cancels.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    chance = random.Random(seed)
    means = sorted(statistics.fmean(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return Interval(statistics.fmean(ratios), means[int(RESAMPLES * 0.025)], means[int(RESAMPLES * 0.975) - 1])


def judge(interval: Interval, limit: float) -> Judgement:
    """Where the interval lies: wholly under the bar, wholly above it, or across."""
    if interval.high <= limit:
        return Judgement.PASSED
    return Judgement.FAILED if interval.low > limit else Judgement.UNDECIDED
