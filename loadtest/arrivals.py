"""
When requests are due in an open loop: absolute times, made from a seed and never from what the server does. Pure.

One schedule is made for the whole run; process p of N takes every N-th arrival, so that the run is the same however
many processes carry it. Poisson means Poisson: the count is left to chance, not stretched to the expected total.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Literal

from loadtest.target import UsageError

MAX_RATE = 100_000.0
NOTATIONS = "constant, poisson, gamma:SHAPE, ramp[:FROM], steps:RATE,RATE,…, trace"

Kind = Literal["constant", "poisson", "gamma", "ramp", "steps", "trace"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """
    A process of arrivals; rates are per second.

    constant: one every 1/rate s, the first at 0. poisson: independent of each other. gamma: gaps of a gamma
    distribution, mean 1/rate; shape 1 is Poisson, smaller is burstier, larger more regular. ramp: Poisson, the rate
    rises (or falls) evenly from `start_rate` to `rate` over the duration. steps: Poisson, `levels` one after the other
    for equal times. trace: `trace_s` as recorded.
    """

    kind: Kind
    rate: float = 0.0
    shape: float = 1.0
    start_rate: float = 0.0
    levels: tuple[float, ...] = ()
    trace_s: tuple[float, ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case "gamma":
                return f"gamma bursts (shape {self.shape:g}) at {self.rate:g}/s"
            case "ramp":
                return f"ramp from {self.start_rate:g}/s to {self.rate:g}/s"
            case "steps":
                return "steps of " + ", ".join(f"{level:g}/s" for level in self.levels)
            case "trace":
                return f"trace of {len(self.trace_s)} arrivals"
        return f"{self.kind} at {self.rate:g}/s"


def parse_arrivals(text: str, rate: float | None, trace_s: Sequence[float] | None = None) -> Arrivals:
    """
    Reads the notation of --arrivals.

    Raises:
        UsageError: another notation, or a rate that is missing or out of bounds.
    """
    name, _, rest = text.strip().partition(":")
    if name == "steps":
        return Arrivals("steps", levels=tuple(_rate(part, "--arrivals steps:") for part in rest.split(",")))
    if name == "trace" and not rest:
        if not trace_s:
            raise UsageError("expected a scenario that replays a file for --arrivals trace: see --list")
        return Arrivals("trace", trace_s=tuple(trace_s))
    if rate is None:
        raise UsageError(f"expected --rate with --arrivals {text} (make loadtest RATE=), found none")
    at = _rate(rate, "--rate")
    if name in ("constant", "poisson") and not rest:
        return Arrivals("constant" if name == "constant" else "poisson", at)
    if name == "gamma":
        return Arrivals("gamma", at, shape=_number(rest, "--arrivals gamma:SHAPE", 0.01, 1000.0))
    if name == "ramp":
        start = _number(rest, "--arrivals ramp:FROM", 0.0, MAX_RATE) if rest else 0.0
        return Arrivals("ramp", at, start_rate=start)
    raise UsageError(f"expected --arrivals to be one of {NOTATIONS}, found {text!r}")


def expected_count(arrivals: Arrivals, duration_s: float) -> float:
    """How many arrivals are to be expected in that time."""
    match arrivals.kind:
        case "trace":
            return sum(at < duration_s for at in arrivals.trace_s)
        case "ramp":
            return (arrivals.start_rate + arrivals.rate) / 2 * duration_s
        case "steps":
            return sum(arrivals.levels) / len(arrivals.levels) * duration_s
    return arrivals.rate * duration_s


def arrival_times(arrivals: Arrivals, duration_s: float, seed: int) -> Iterator[float]:
    """Seconds from the start, never decreasing, all before the end."""
    for at in _unbounded(arrivals, duration_s, random.Random(f"arrivals:{seed}")):
        if at >= duration_s:
            return
        yield at


def share(times: Iterator[float], process: int, processes: int) -> Iterator[tuple[int, float]]:
    """(number within the run, time) of the arrivals that one of so many processes takes."""
    return islice(enumerate(times), process, None, processes)


def _unbounded(arrivals: Arrivals, duration_s: float, chance: random.Random) -> Iterator[float]:
    match arrivals.kind:
        case "trace":
            yield from sorted(arrivals.trace_s)
        case "constant":
            number = 0
            while True:
                yield number / arrivals.rate
                number += 1
        case "gamma":
            at = 0.0
            while True:
                at += chance.gammavariate(arrivals.shape, 1 / (arrivals.rate * arrivals.shape))
                yield at
        case _:
            # A Poisson process of any rate is one of rate 1 on the axis of the expected count.
            count = 0.0
            while True:
                count += chance.expovariate(1.0)
                yield _time_of(arrivals, duration_s, count)


def _time_of(arrivals: Arrivals, duration_s: float, count: float) -> float:
    """The time by which so many arrivals are expected; infinite beyond the end."""
    match arrivals.kind:
        case "ramp":
            return _ramp_time(arrivals.start_rate, arrivals.rate, duration_s, count)
        case "steps":
            return _steps_time(arrivals.levels, duration_s, count)
    return count / arrivals.rate


def _ramp_time(start: float, end: float, duration_s: float, count: float) -> float:
    """Solves start * t + (end - start) * t² / (2 * duration) = count, in the form that is stable for equal rates."""
    slope = (end - start) / duration_s
    inside = start * start + 2 * slope * count
    if inside < 0:
        return math.inf
    return 2 * count / (start + math.sqrt(inside)) if count else 0.0


def _steps_time(levels: Sequence[float], duration_s: float, count: float) -> float:
    each = duration_s / len(levels)
    edges = list(accumulate((level * each for level in levels), initial=0.0))
    for number, (low, high) in enumerate(pairwise(edges)):
        if count < high:
            return number * each + (count - low) / levels[number]
    return math.inf


def _rate(value: str | float, what: str) -> float:
    return _number(value, what, 0.001, MAX_RATE)


def _number(value: str | float, what: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise UsageError(f"expected {what} to be a number from {low:g} to {high:g}, found {str(value)!r}")
    return number
