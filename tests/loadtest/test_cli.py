"""The command line: what it refuses, and how it says so."""

from __future__ import annotations

import argparse
import socket

import pytest

from loadtest.arrivals import Arrivals
from loadtest.cli import BAD_USAGE, DONE, FAILED, INTERRUPTED, INVALID, LOST_PROCESS, NO_TARGET, main
from loadtest.consent import check_consent, planned_load
from loadtest.options import build_parser, parse_duration
from loadtest.plan import RunPlan
from loadtest.run_options import choose_load, steady_window
from loadtest.scenarios import scenarios
from loadtest.scenarios.base import Context, Scenario
from loadtest.scenarios.options import make
from loadtest.scenarios.text import TokenScale
from loadtest.target import UsageError, parse_target


def chat() -> Scenario:
    return make(scenarios()["chat"], Context("m", TokenScale()), {})


@pytest.mark.parametrize(("text", "seconds"), [("20", 20), ("20s", 20), ("1m30s", 90), ("0.5s", 0.5), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    """Seconds by default, units if given."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "25h", "abc", "1x"])
def test_bad_durations_are_refused(text: str) -> None:
    """Nothing, zero, more than a day, nonsense."""
    with pytest.raises(argparse.ArgumentTypeError, match="expected a duration"):
        parse_duration(text)


@pytest.mark.parametrize("flags", [["--users", "0"], ["--users", "10001"], ["--duration", "never"], ["nonsense"]])
def test_bounds_are_exit_code_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Users and duration are bounded; the message says to what."""
    with pytest.raises(SystemExit) as left:
        main(flags, {})

    assert left.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("http://127.0.0.1:8000/v1/", "127.0.0.1", 8000, ""),
        ("https://example.test/base/v1", "example.test", 443, "/base"),
        ("http://[::1]:9", "::1", 9, ""),
    ],
)
def test_targets(url: str, host: str, port: int, prefix: str) -> None:
    """With and without /v1, port and path."""
    target = parse_target(url)

    assert (target.host, target.port, target.prefix) == (host, port, prefix)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://a:b"])
def test_bad_targets_are_named(url: str) -> None:
    """The message shows what was expected and what was found."""
    with pytest.raises(UsageError, match="expected a target like"):
        parse_target(url)


def test_by_default_it_runs_for_thirty_seconds_against_the_gateways_own_address() -> None:
    """What `make loadtest` and README promise."""
    options = build_parser().parse_args([])
    load = choose_load(options, chat())

    assert ("http://127.0.0.1:8000", "chat") == (options.target, options.scenario)
    assert (8, None, 30.0) == (load.users, load.arrivals, load.duration_s)


@pytest.mark.parametrize(
    ("flags", "users", "arrivals"),
    [
        (["--users", "3"], 3, None),
        (["--rate", "20"], None, "poisson at 20/s"),
        (["--rate", "20", "--arrivals", "gamma:0.5"], None, "gamma bursts (shape 0.5) at 20/s"),
        (["--arrivals", "steps:5,10"], None, "steps of 5/s, 10/s"),
    ],
)
def test_a_rate_or_arrivals_open_the_loop(flags: list[str], users: int | None, arrivals: str | None) -> None:
    """Users close it."""
    load = choose_load(build_parser().parse_args(flags), chat())

    assert (users, arrivals) == (load.users, None if load.arrivals is None else str(load.arrivals))


def test_users_and_a_rate_at_once_are_refused() -> None:
    """One of them would be ignored in silence."""
    with pytest.raises(UsageError, match="found both"):
        choose_load(build_parser().parse_args(["--users", "3", "--rate", "2"]), chat())


@pytest.mark.parametrize("name", list(scenarios()))
def test_every_scenario_has_a_load_of_its_own(name: str) -> None:
    """Its defaults are enough to run (a replay needs its file)."""
    if name == "replay":
        return
    scenario = make(scenarios()[name], Context("m", TokenScale()), {})
    load = choose_load(build_parser().parse_args([name]), scenario)

    assert (load.users is None) is (load.arrivals is not None)


@pytest.mark.parametrize(
    ("warmup", "duration", "ended", "window"),
    [
        (None, 30, 33, (3, 30)),
        (None, 3600, 3601, (30, 3600)),
        (0, 30, 33, (0, 30)),
        (5, 30, 12, (5, 12)),
        (5, 9, 4, (0, 4)),
    ],
)
def test_the_steady_window_leaves_out_warm_up_and_tail(
    warmup: float | None, duration: float, ended: float, window: tuple[float, float]
) -> None:
    """A tenth, at most 30 s; what was interrupted within its warm-up is all there is."""
    assert window == pytest.approx(steady_window(warmup, duration, ended))


def test_a_target_off_this_machine_needs_a_yes_and_is_told_what_would_be_sent() -> None:
    """192.0.2.1 is reserved for documentation: nothing is sent in either case."""
    target = parse_target("http://192.0.2.1:8000")
    plan = RunPlan(target, "chat", Context("m", TokenScale()), 30.0, arrivals=Arrivals("poisson", 20))
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return len(asked) > 1

    with pytest.raises(UsageError) as refused:
        check_consent(target, planned_load(plan), yes=False, ask=None)
    for part in ("http://192.0.2.1:8000", "about 600 sessions", "poisson at 20/s", "30 s", "--yes"):
        assert part in str(refused.value)
    with pytest.raises(UsageError, match="nothing was sent"):
        check_consent(target, planned_load(plan), yes=False, ask=ask)
    check_consent(target, planned_load(plan), yes=False, ask=ask)
    check_consent(target, planned_load(plan), yes=True, ask=None)
    check_consent(parse_target("http://localhost:1"), planned_load(plan), yes=False, ask=None)
    assert ["about 600 sessions" in question for question in asked] == [True, True]


def test_without_a_terminal_the_command_refuses_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sent to it, the probes included."""
    assert 2 == main(["--target", "http://192.0.2.1:8000", "--users", "5"], {})
    error = capsys.readouterr().err
    assert "5 users in a closed loop for 30 s; add --yes" in error
    assert "would send chat (prompt_tokens=128, output_tokens=64" in error


def test_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """And it renders: a percent sign in a help text would break it."""
    with pytest.raises(SystemExit) as left:
        main(["--help"], {})
    shown = capsys.readouterr().out

    assert 0 == left.value.code
    assert all(f"{code} " in shown for code in (DONE, FAILED, BAD_USAGE, NO_TARGET, INVALID, LOST_PROCESS, INTERRUPTED))


def test_the_list_has_every_scenario_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, defaults, and options in the notation they are given in."""
    assert 0 == main(["--list"], {})
    listed = capsys.readouterr().out

    assert all(f"{name}: " in listed for name in scenarios())
    assert "--option prompt_tokens=128" in listed


@pytest.mark.parametrize("text", ["ttft_p95", "ttft_p95=500", "ttft=1s", "speed_p9=1s", "attainment=99%", "e2e_p0=1s"])
def test_bad_thresholds_are_refused_with_the_notation(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sent."""
    assert 2 == main(["--slo", text], {})
    assert "expected" in capsys.readouterr().err


def test_nothing_at_the_target_is_exit_code_3_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """The port is bound and not listening, so it is refused for certain."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        code = main(["--target", f"http://127.0.0.1:{reserved.getsockname()[1]}"], {})

    error = capsys.readouterr().err
    assert code == 3
    assert "make serve" in error
    assert "TARGET=" in error
    assert "Connection refused" in error
