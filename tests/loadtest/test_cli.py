"""The command line: what it refuses, and how it says so."""

from __future__ import annotations

import argparse
import socket

import pytest

from loadtest.cli import build_parser, check_target, main, parse_duration
from loadtest.target import UsageError, parse_target


@pytest.mark.parametrize(("text", "seconds"), [("20", 20), ("20s", 20), ("1m30s", 90), ("0.5s", 0.5), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    """Seconds by default, units if given."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "25h", "abc", "1x"])
def test_bad_durations_are_refused(text: str) -> None:
    """Nothing, zero, more than a day, nonsense."""
    with pytest.raises(argparse.ArgumentTypeError, match="expected a duration"):
        parse_duration(text)


@pytest.mark.parametrize("flags", [["--users", "0"], ["--users", "1001"], ["--duration", "never"], ["nonsense"]])
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

    assert (30.0, "http://127.0.0.1:8000") == (options.duration, options.target)


def test_a_target_off_this_machine_needs_a_yes_and_is_told_what_would_be_sent() -> None:
    """192.0.2.1 is reserved for documentation: nothing is sent in either case."""
    parser = build_parser()
    target = parse_target("http://192.0.2.1:8000")
    flags = ["--users", "5", "--duration", "30s", "--max-tokens", "7"]

    with pytest.raises(UsageError) as refused:
        check_target(target, parser.parse_args(flags))
    for part in ("http://192.0.2.1:8000", "5 concurrent users", "30 s", "7 tokens", "--yes"):
        assert part in str(refused.value)
    check_target(target, parser.parse_args([*flags, "--yes"]))
    check_target(parse_target("http://localhost:1"), parser.parse_args(flags))


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
