"""The options of `python -m loadtest`: what exists, its defaults, and what can be refused without asking a server."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from loadtest.arrivals import NOTATIONS
from loadtest.objectives import NOTATION
from loadtest.scenarios import scenarios
from loadtest.scenarios.options import options_of

MAX_USERS = 10_000
MAX_DURATION_S = 24 * 3600.0
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")

EPILOG = """\
examples:
  python -m loadtest                                          8 users, 30 s, against http://127.0.0.1:8000
  python -m loadtest chat --rate 20 --duration 1m             open loop: 20 sessions a second, Poisson arrivals
  python -m loadtest chat --rate 20 --arrivals gamma:0.2      the same rate in bursts
  python -m loadtest multi-turn --users 50 --processes 2      closed loop on two load processes
  python -m loadtest chat --option prompt_tokens=200-2000     a scenario's own options: see --list
  python -m loadtest chat --slo ttft_p95=500ms --slo attainment=99%
  python -m loadtest report results/RUN                       the report of a stored run, anew

exit codes: 0 done; 1 too many failures, or a threshold missed; 2 bad usage, or the result cannot be stored; 3 nothing
usable answers; 4 INVALID: the load generator could not keep up, so the figures are not the server's; 5 a load process
was lost; 130 interrupted before the run, or twice.
"""


def parse_duration(text: str) -> float:
    """Seconds of "20", "20s", "1m30s", "2h"; refused: nothing, zero, more than a day."""
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (float(g or 0) for g in match.groups()) if match else (0.0, 0.0, 0.0)
    total = hours * 3600 + minutes * 60 + seconds
    if not 0 < total <= MAX_DURATION_S:
        raise argparse.ArgumentTypeError(f"expected a duration like 20s or 1m30s, at most 24h, found {text!r}")
    return total


def _duration_or_zero(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0s") else parse_duration(text)


def _count(low: int, high: int) -> type[int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, found {text!r}")
        return int(text)

    return parse  # type: ignore[return-value]


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 2, found {text!r}")
    return value


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"expected a percentage from 0 to 100, found {text!r}")
    return value


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, found {text!r}")
    return key, value


def build_parser() -> argparse.ArgumentParser:
    """The argument parser; what a scenario has defaults of its own for is None here."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Load on an OpenAI-compatible endpoint, timed at the socket.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = tuple(scenarios())
    parser.add_argument(
        "scenario",
        nargs="?",
        default="chat",
        choices=names,
        metavar="SCENARIO",
        help=f"{', '.join(names)}; default: chat",
    )
    parser.add_argument("--list", action="store_true", help="the scenarios with their options, and leave")
    parser.add_argument("--target", metavar="URL", default="http://127.0.0.1:8000", help="default: %(default)s")

    load = parser.add_argument_group("load (defaults are the scenario's)")
    load.add_argument(
        "--users", metavar="N", type=_count(1, MAX_USERS), help="closed loop: each asks, waits, asks again"
    )
    load.add_argument("--rate", type=float, metavar="R", help="open loop: sessions a second, whatever the server does")
    load.add_argument("--arrivals", metavar="HOW", help=f"of an open loop: {NOTATIONS}; default: poisson")
    load.add_argument("--duration", type=parse_duration, metavar="TIME", help="30s, 1m30s, 2h")
    load.add_argument(
        "--warmup",
        type=_duration_or_zero,
        metavar="TIME",
        help="not in the figures; default: a tenth, at most 30s",
    )
    load.add_argument("--drain", type=parse_duration, metavar="TIME", default=60.0, help="to finish, default: 60s")
    load.add_argument(
        "--processes", metavar="N", type=_count(1, 64), default=1, help="load processes, default: %(default)s"
    )
    load.add_argument(
        "--max-in-flight",
        metavar="N",
        type=_count(1, 25_000),
        default=1000,
        help="beyond it: unsent, default: %(default)s",
    )

    content = parser.add_argument_group("content")
    content.add_argument("--model", help="default: the first one in /v1/models")
    content.add_argument(
        "--option", type=_option, action="append", default=[], metavar="KEY=VALUE", help="of the scenario; repeatable"
    )
    content.add_argument("--seed", type=_count(0, 2**31), default=1, help="of everything random, default: %(default)s")
    content.add_argument("--salt", help="begins every prompt, against accidental cache hits; default: new for each run")
    content.add_argument(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="of the answers, default: 0, the same work in every run; 1 for random weights (load_format: dummy)",
    )
    content.add_argument("--assume-lengths", action="store_true", help="do not ask the target how it counts tokens")
    content.add_argument("--continuous-usage", action="store_true", help="ask for token counts in every event (vLLM)")

    wire = parser.add_argument_group("connection")
    wire.add_argument("--api-key", help="default: $GATEWAY_API_KEY, then $OPENAI_API_KEY")
    wire.add_argument(
        "--connections", choices=("keep", "new"), default="keep", help="kept alive, or a new one for every request"
    )
    wire.add_argument("--read-timeout", type=parse_duration, metavar="TIME", default=120.0, help="default: 2m")
    wire.add_argument("--yes", action="store_true", help="send load to a target that is not on this machine")

    verdict = parser.add_argument_group("verdict")
    slo_help = f"{NOTATION}; repeatable".replace("%", "%%")
    verdict.add_argument("--slo", action="append", default=[], metavar="NAME=VALUE", help=slo_help)
    verdict.add_argument("--max-failures", type=_percent, default=0.0, metavar="PERCENT", help="default: 0")
    verdict.add_argument(
        "--calibrate",
        nargs="?",
        choices=("auto", "now", "never"),
        const="now",
        default="auto",
        help="measure what this machine's client can take (3 s); default: once, then remembered",
    )

    output = parser.add_argument_group("output")
    output.add_argument("--results", default="results", metavar="DIR", help="folder of results, default: %(default)s")
    output.add_argument("--json", metavar="FILE", help="the result there too; - for standard output, and no table")
    output.add_argument(
        "--server-metrics",
        metavar="URL",
        help="where the server's own figures are; default: the target's /metrics, or a gateway's admin port beside it",
    )
    output.add_argument("--metrics-port", type=_count(0, 65535), metavar="PORT", help="Prometheus metrics; 0: any port")
    return parser


def described_scenarios() -> Sequence[str]:
    """One line per scenario and per option, for --list."""
    lines = []
    for name, scenario in scenarios().items():
        defaults = scenario.defaults
        load = f"{defaults.users} users" if defaults.rate is None else f"{defaults.rate:g}/s, {defaults.arrivals}"
        lines.append(f"{name}: {scenario.description} (default: {load}, {defaults.duration_s:g} s)")
        lines += [f"    --option {option.name}={option.default}   {option.help}" for option in options_of(scenario)]
    return lines
