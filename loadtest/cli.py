"""
The load test's command line.

Exit codes: 0 done and failures within the threshold; 1 too many failures (or nothing succeeded); 2 bad usage, also a
target off loopback without --yes, or a result that cannot be stored; 3 nothing usable answers at the target; 130
interrupted before the run, or twice.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from loadtest.discovery import TargetUnavailableError, choose_model
from loadtest.ledger import Ledger
from loadtest.report import print_table, result_json, write_json
from loadtest.target import Target, UsageError, parse_target
from loadtest.workload import ChatPlan

MAX_USERS = 1_000
MAX_DURATION_S = 24 * 3600.0
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def parse_duration(text: str) -> float:
    """Seconds of "20", "20s", "1m30s", "2h"; refused: nothing, zero, more than a day."""
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (float(g or 0) for g in match.groups()) if match else (0.0, 0.0, 0.0)
    total = hours * 3600 + minutes * 60 + seconds
    if not 0 < total <= MAX_DURATION_S:
        raise argparse.ArgumentTypeError(f"expected a duration like 20s or 1m30s, at most 24h, found {text!r}")
    return total


def _count(low: int, high: int) -> type[int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, found {text!r}")
        return int(text)

    return parse  # type: ignore[return-value]


def build_parser() -> argparse.ArgumentParser:
    """The argument parser; defaults are those of `make loadtest`."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description="Streaming load on an OpenAI endpoint.")
    parser.add_argument("scenario", nargs="?", choices=("chat",), default="chat")
    parser.add_argument("--target", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument(
        "--users", type=_count(1, MAX_USERS), default=8, help="concurrent streams, default: %(default)s"
    )
    parser.add_argument("--duration", type=parse_duration, default=30.0, help="30s, 1m30s, ...; default: 30s")
    parser.add_argument("--drain", type=parse_duration, default=60.0, help="time to finish after the end, default: 60s")
    parser.add_argument("--model", help="default: the first one in /v1/models")
    parser.add_argument("--max-tokens", type=_count(1, 1_000_000), default=64, help="per answer, default: %(default)s")
    parser.add_argument("--prompt-words", type=_count(1, 1_000_000), default=64, help="default: %(default)s")
    parser.add_argument("--ignore-eos", action="store_true", help="ask for exactly --max-tokens (vLLM only)")
    parser.add_argument("--seed", type=_count(0, 2**31), default=1, help="of the prompts, default: %(default)s")
    parser.add_argument("--api-key", help="default: $GATEWAY_API_KEY, then $OPENAI_API_KEY")
    parser.add_argument(
        "--max-failures", type=float, default=0.0, metavar="PERCENT", help="exit 1 above it, default: 0"
    )
    parser.add_argument("--json", metavar="FILE", help="write the result there too; - for standard output, no table")
    parser.add_argument("--results", default="results", metavar="DIR", help="folder of results, default: %(default)s")
    parser.add_argument("--yes", action="store_true", help="send load to a target that is not on this machine")
    return parser


def check_target(target: Target, options: argparse.Namespace) -> None:
    """
    Lets loopback pass, and anything else only after a yes.

    Raises:
        UsageError: not loopback and no --yes; the message says what would be sent.
    """
    if options.yes or target.is_loopback():
        return
    raise UsageError(
        f"{target.url} is not on this machine: would send streaming chat requests from {options.users} concurrent "
        f"users for {options.duration:g} s, each asking for up to {options.max_tokens} tokens; add --yes to do it"
    )


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Parses, asks, runs, reports; returns the exit code."""
    options = build_parser().parse_args(argv)
    console = Console(stderr=options.json == "-")
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has no width of its own
    try:
        target = parse_target(options.target)
        check_target(target, options)
        api_key = options.api_key or environ.get("GATEWAY_API_KEY") or environ.get("OPENAI_API_KEY")
        model = choose_model(target, options.model, api_key)
    except UsageError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    except TargetUnavailableError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return _run(options, console, target, model, api_key)


def _run(options: argparse.Namespace, console: Console, target: Target, model: str, api_key: str | None) -> int:
    # Imported here: Locust takes a second to import, which bad usage and --help need not wait for.
    from loadtest.locust_run import RunPlan, run_chat

    chat = ChatPlan(model, options.max_tokens, options.prompt_words, options.ignore_eos, options.seed)
    plan = RunPlan(target, chat, options.users, options.duration, options.drain, api_key)
    title = (
        f"{options.scenario}: {model} at {target.url}, {options.users} users for {options.duration:g} s, closed loop"
    )
    console.print(title, highlight=False)
    ledger = Ledger()

    def progress(elapsed: float) -> None:
        if console.is_terminal:
            left = max(0.0, options.duration - elapsed)
            state = f"{ledger.ok} ok, {ledger.failed} failed, {ledger.in_flight} in flight, {left:.0f} s left"
            console.print(f"\r{state}   ", end="", highlight=False)

    totals = run_chat(plan, ledger, progress)
    if console.is_terminal:
        console.print()
    settings = {
        "scenario": options.scenario,
        "target": target.url,
        "model": model,
        "users": options.users,
        "duration_s": options.duration,
        "max_tokens": options.max_tokens,
        "prompt_words": options.prompt_words,
        "ignore_eos": options.ignore_eos,
        "seed": options.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "locust_requests": totals.requests,
        "locust_failures": totals.failures,
    }
    result = result_json(ledger, settings)
    stored = Path(options.results) / f"{options.scenario}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    # Shown first: a result that cannot be stored must not be lost with the folder's write permission.
    if options.json == "-":
        json.dump(result, sys.stdout)
    else:
        print_table(console, ledger)
    try:
        write_json(stored, result)
        if options.json not in (None, "-"):
            write_json(Path(options.json), result)
    except OSError as error:
        print(f"loadtest: the result cannot be stored: {error}: set --results or --json", file=sys.stderr)
        return 2
    if options.json != "-":
        console.print(f"result: {stored}", highlight=False)
    too_many = 100 * ledger.failure_share() > options.max_failures
    return 1 if too_many or not ledger.ok else 0
