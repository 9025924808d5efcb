"""What docs/api.md promises clients is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.protocol import headers
from gateway.protocol.paths import ModelRetrieve, resolve
from gateway.protocol.splice import OPERATOR_FIELDS
from gateway.proxy.policy import RelayPolicy, TimeLimits

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_fields_that_are_removed_are_named() -> None:
    """One row of the table of rewrites."""
    row = next(line for line in PAGE.splitlines() if line.startswith("| `priority`"))

    assert set(re.findall(r"`(\w+)`", row.split("|")[1])) == OPERATOR_FIELDS


def test_the_headers_that_workers_get_are_named() -> None:
    """All of them, and no other of the client's."""
    sentence = re.search(r"workers get (.*?), with an", PAGE, re.DOTALL)
    assert sentence is not None
    named = {name.lower().encode() for name in re.findall(r"`([^`]+)`", sentence[1])}
    assert named == headers._TO_WORKER

    others = {b"authorization", b"cookie", b"x-api-key", b"openai-organization", b"x-forwarded-for", b"x-request-id"}
    sent = headers.forwarded_headers([(name, b"client's") for name in named | others], host="w")
    assert {name for name, value in sent if value == b"client's"} == named


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "//v1//chat/completions",
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/openai/v1/chat/completions",
        "/v1/chat/completions/chat/completions",
    ],
)
def test_the_spellings_that_are_told_work(path: str) -> None:
    """Base URLs are configured by hand."""
    assert resolve(path.encode()) == resolve(b"/v1/chat/completions") is not None


@pytest.mark.parametrize("path", ["/v1/models/org/name", "/v1/models/org%2Fname"])
def test_slashes_in_ids_are_as_told(path: str) -> None:
    """As they are or escaped."""
    assert resolve(path.encode()) == ModelRetrieve("org/name")


def test_the_times_that_are_not_configured_are_told() -> None:
    """A reader cannot look them up in the configuration."""
    policy, limits = RelayPolicy(), TimeLimits()

    assert f"pauses for {policy.body_stall_s:.0f} s, or takes {policy.body_total_s:.0f} s" in PAGE
    assert f"its buffer within {limits.stalled_client_s:.0f} s" in PAGE
