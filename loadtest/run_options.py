"""From options to a plan: a scenario's defaults, which loop, which window, which settings a result keeps. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from loadtest.arrivals import Arrivals, parse_arrivals
from loadtest.plan import RunPlan
from loadtest.scenarios import scenarios
from loadtest.scenarios.base import Scenario, Timed
from loadtest.scenarios.digest import bodies_digest
from loadtest.scenarios.options import option_values
from loadtest.target import UsageError

WARMUP_SHARE = 0.1
LONGEST_WARMUP_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """Which loop, for how long."""

    users: int | None
    arrivals: Arrivals | None
    duration_s: float

    def __str__(self) -> str:
        return f"{self.users} users, closed loop" if self.arrivals is None else f"open loop, {self.arrivals}"


def choose_load(options: argparse.Namespace, scenario: Scenario) -> Load:
    """
    What the options say, and the scenario's defaults for the rest.

    Raises:
        UsageError: users and a rate at once, or arrivals that cannot be read.
    """
    defaults = scenarios()[scenario.name].defaults
    duration_s = options.duration or defaults.duration_s
    if options.users is not None and (options.rate is not None or options.arrivals is not None):
        raise UsageError(
            "expected --users (closed loop) or --rate with --arrivals (open loop), found both "
            "(make loadtest: USERS= or RATE=)"
        )
    trace = tuple(cast(Timed, scenario).arrival_times()) if hasattr(scenario, "arrival_times") else None
    asks_open = options.rate is not None or options.arrivals is not None
    if options.users is not None or (not asks_open and defaults.rate is None and not trace):
        return Load(options.users or defaults.users, None, duration_s)
    usual = "trace" if trace and options.rate is None else defaults.arrivals
    how = options.arrivals or ("poisson" if usual == "closed" else usual)
    rate = defaults.rate if options.rate is None else options.rate
    return Load(None, parse_arrivals(how, rate, trace), duration_s)


def steady_window(warmup_s: float | None, duration_s: float, ended_s: float) -> tuple[float, float]:
    """From the end of the warm-up to the end of the schedule, or of the run where that was interrupted."""
    end = min(duration_s, ended_s)
    start = min(WARMUP_SHARE * duration_s, LONGEST_WARMUP_S) if warmup_s is None else warmup_s
    return (start, end) if start < end else (0.0, end)


def connection_words(plan: RunPlan) -> str:
    """The connection policy, as printed."""
    if plan.connections == "new":
        return "a new connection for every request; its opening is not part of TTFT, but of … from schedule"
    held = "one per user" if plan.arrivals is None else "the last used one first"
    return f"kept alive, {held}; opening one is not part of TTFT, but of … from schedule"


def settings_of(
    plan: RunPlan, scenario: Scenario, load: Load, options: argparse.Namespace, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """What a result must say to be understood, and repeated."""
    rate = None if load.arrivals is None or not load.arrivals.rate else load.arrivals.rate
    return {
        "scenario": plan.scenario,
        "target": plan.target.url,
        "model": plan.context.model,
        "arrivals": "closed" if load.arrivals is None else str(load.arrivals),
        "rate": rate,
        "users": plan.users,
        "duration_s": plan.duration_s,
        "warmup_s": options.warmup,
        "drain_s": plan.drain_s,
        "processes": plan.processes,
        "max_in_flight": plan.max_in_flight,
        "connection_policy": connection_words(plan),
        "read_timeout_s": plan.read_timeout_s,
        "seed": plan.seed,
        "salt": plan.context.salt,
        "temperature": plan.context.temperature,
        "options": option_values(scenario),
        "bodies_digest": bodies_digest(scenario, plan.seed),
        "run_id": plan.run_id,
        **extra,
    }
