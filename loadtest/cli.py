"""
The load test's command line: asks, measures the client, runs, judges, stores.

Exit codes are those of `options.EPILOG`; where several apply the first of INVALID, missed thresholds, failures counts.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from loadtest.consent import check_consent, planned_load
from loadtest.discovery import TargetUnavailableError, choose_model
from loadtest.objectives import missed_objectives, objective_texts, parse_objectives
from loadtest.options import build_parser, described_scenarios
from loadtest.plan import RunPlan
from loadtest.report.folder import write_results
from loadtest.report.summary import stored_json
from loadtest.report.table import print_summary
from loadtest.result import RunResult
from loadtest.run_options import Load, choose_load, connection_words, settings_of, steady_window
from loadtest.scenarios import scenarios
from loadtest.scenarios.base import Context, Scenario, session_rng
from loadtest.scenarios.calibration import Calibration, calibrate
from loadtest.scenarios.options import make, option_values
from loadtest.scenarios.text import TokenScale
from loadtest.target import Target, UsageError, parse_target

DONE, FAILED, BAD_USAGE, NO_TARGET, INVALID, LOST_PROCESS, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that only has to be started."""

    plan: RunPlan
    scenario: Scenario
    load: Load
    lengths: Calibration
    objectives: dict[str, float]


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Parses, asks, runs, reports; returns the exit code."""
    if argv[:1] == ["report"]:
        from loadtest.report.command import main as report_main

        return report_main(argv[1:])
    options = build_parser().parse_args(argv)
    if options.list:
        with suppress(BrokenPipeError):  # `--list | head`
            print("\n".join(described_scenarios()), flush=True)
        return DONE
    console = Console(stderr=options.json == "-")
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has no width of its own
    try:
        prepared = prepare(options, environ, _asker(console))
        return _run(options, console, prepared, environ)
    except UsageError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return BAD_USAGE
    except TargetUnavailableError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return NO_TARGET
    except (KeyboardInterrupt, EOFError):  # the latter: Ctrl-D instead of a yes or no
        return INTERRUPTED


def _asker(console: Console) -> Callable[[str], bool] | None:
    """Asks on a terminal; None where nobody could answer."""
    if not (sys.stdin.isatty() and console.is_terminal):
        return None
    return lambda question: console.input(f"{question} [y/N] ", markup=False).strip().lower() in ("y", "yes")


def prepare(
    options: argparse.Namespace, environ: Mapping[str, str], ask: Callable[[str], bool] | None = None
) -> Prepared:
    """
    Everything up to the first request of the load. What can be refused without asking the target is refused first.

    Raises:
        UsageError: something the person at the keyboard can mend.
        TargetUnavailableError: nothing usable answers.
    """
    target = parse_target(options.target)
    objectives = parse_objectives(options.slo)
    kind, given = scenarios()[options.scenario], dict(options.option)
    salt = secrets.token_hex(4) if options.salt is None else options.salt
    draft = make(kind, Context("?", TokenScale(), salt), given)
    load = choose_load(options, draft)
    api_key = options.api_key or environ.get("GATEWAY_API_KEY") or environ.get("OPENAI_API_KEY")
    plan = RunPlan(
        target=target,
        scenario=options.scenario,
        context=draft.context,
        options=given,
        users=load.users,
        arrivals=load.arrivals,
        duration_s=load.duration_s,
        drain_s=options.drain,
        seed=options.seed,
        processes=options.processes if load.users is None else min(options.processes, load.users),
        max_in_flight=options.max_in_flight,
        connections=options.connections,
        read_timeout_s=options.read_timeout,
        api_key=api_key,
        run_id=f"{time.time_ns():x}",
    )
    wanted = ", ".join(f"{key}={value}" for key, value in option_values(draft).items())
    check_consent(target, f"{options.scenario} ({wanted}): {planned_load(plan)}", yes=options.yes, ask=ask)
    model = choose_model(target, options.model, api_key)
    lengths = _lengths(options, target, model, api_key, draft, salt)
    context = replace(lengths.context, temperature=options.temperature)
    return Prepared(replace(plan, context=context), make(kind, context, given), load, lengths, objectives)


def _lengths(
    options: argparse.Namespace, target: Target, model: str, api_key: str | None, scenario: Scenario, salt: str
) -> Calibration:
    """How the target counts tokens, asked or assumed."""
    if options.assume_lengths:
        context = Context(model, TokenScale(), salt, continuous_usage=options.continuous_usage)
        return Calibration(context, ("lengths are assumed, as --assume-lengths says",), 0)
    request = next(scenario.session(session_rng(options.seed, 0), 0))
    return calibrate(
        target, model, api_key, family=request.family, salt=salt, continuous_usage=options.continuous_usage
    )


def _run(options: argparse.Namespace, console: Console, prepared: Prepared, environ: Mapping[str, str]) -> int:
    # Imported here: Locust takes a second to import, which bad usage and --help need not wait for.
    from loadtest.locust_run import WorkerProcessError
    from loadtest.measured_run import measured_run

    plan, objectives = prepared.plan, prepared.objectives
    title = f"{plan.scenario}: {plan.context.model} at {plan.target.url}, {prepared.load}, {plan.duration_s:g} s"
    console.print(title, highlight=False)
    warmup = f"{steady_window(options.warmup, plan.duration_s, plan.duration_s)[0]:g} s"
    console.print(f"warm-up: {warmup}; connections: {connection_words(plan)}", style="dim", highlight=False)
    if objectives:
        console.print(f"thresholds: {', '.join(objective_texts(objectives))}", highlight=False)
    for note in prepared.lengths.notes:
        console.print(f"  {note}", style="dim", highlight=False, markup=False)
    ceiling = _ceiling(options, console, environ)
    settings = settings_of(
        plan,
        prepared.scenario,
        prepared.load,
        options,
        {
            "lengths": prepared.lengths.to_json(),
            "ceiling_per_process": ceiling,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )
    try:
        result = measured_run(
            plan,
            settings,
            console,
            title=title,
            objectives=objectives,
            warmup_s=options.warmup,
            ceiling=ceiling,
            metrics_port=options.metrics_port,
            server_metrics=options.server_metrics,
        )
    except WorkerProcessError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return LOST_PROCESS
    # Shown first: a result that cannot be stored must not be lost with the folder's write permission.
    if options.json == "-":
        json.dump(stored_json(result), sys.stdout)
    else:
        print_summary(console, result)
    stored = _store(options, console, result)
    return _verdict(options, console, result) if stored else BAD_USAGE


def _ceiling(options: argparse.Namespace, console: Console, environ: Mapping[str, str]) -> float | None:
    from loadtest.ceiling import CeilingError, known_ceiling

    if options.calibrate == "never":
        return None
    try:
        ceiling, measured = known_ceiling(environ, anew=options.calibrate == "now")
    except CeilingError as error:
        console.print(f"the client's own limit is unknown: {error}", style="yellow", highlight=False, markup=False)
        return None
    if measured:
        console.print(
            f"this machine's client: {ceiling.cpu_us_per_event:.1f} us of processor time per event, "
            f"{ceiling.events_per_s:,.0f} events/s per load process",
            highlight=False,
        )
    return ceiling.events_per_s


def _store(options: argparse.Namespace, console: Console, result: RunResult) -> bool:
    folder = Path(options.results) / f"{options.scenario}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        written = write_results(folder, result)
        if options.json not in (None, "-"):
            Path(options.json).write_text(json.dumps(stored_json(result)) + "\n")
    except OSError as error:
        print(f"loadtest: the result cannot be stored: {error}: set --results or --json", file=sys.stderr)
        return False
    if options.json != "-":
        for line in written.lines():
            console.print(line, highlight=False, markup=False)
    return True


def _verdict(options: argparse.Namespace, console: Console, result: RunResult) -> int:
    """The exit code, and why it is not 0."""
    if not result.health.valid:
        return INVALID
    missed = missed_objectives(result)
    for text in missed:
        console.print(f"MISSED {text}", style="bold red", highlight=False, markup=False)
    ledger = result.ledger
    too_many = 100 * ledger.failure_share() > options.max_failures or not ledger.ok + ledger.cancelled
    return FAILED if missed or too_many else DONE
