"""
The corpus suite: one test per known failure of relays in the field, over every relay path.

`pytest tests/corpus --relay naive` runs it against a naive httpx relay instead, which must fail most of it. Of each id
only what comes before the first failure is run then: one failure shows that it bites, and many of them take long.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import partial
from typing import Any

import pytest

from tests.corpus import relayed
from tests.corpus.relayed import Relay

PATHS = {"gateway": ["direct", "portable"], "naive": ["naive"]}
BITTEN = pytest.StashKey[set[str]]()
"""Ids that have failed against the double."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--relay`, known when this folder is named on the command line."""
    parser.addoption("--relay", choices=sorted(PATHS), default="gateway", help="what the corpus suite runs against")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that takes `relay` runs over every path of the chosen relay."""
    if "relay" in metafunc.fixturenames:
        metafunc.parametrize("relay", PATHS[metafunc.config.getoption("relay", "gateway")], indirect=True)


def corpus_id(item: pytest.Item) -> str:
    """The id a test is named after, "" without."""
    named = re.match(r"test_(c\d\d)_", item.name)
    return "" if named is None else named[1]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Against the double, an id that has failed need not fail again."""
    if corpus_id(item) in item.config.stash.get(BITTEN, set()):
        pytest.skip("this id has bitten already")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which ids have failed against the double."""
    report = yield
    if report.failed and report.when == "call" and item.config.getoption("relay", "gateway") == "naive":
        item.config.stash.setdefault(BITTEN, set()).add(corpus_id(item))
    return report


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvloop, as the gateway process runs."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def relay(request: pytest.FixtureRequest) -> Relay:
    """Starts the relay under test: `async with relay(worker, other, policy=...) as gate: ...`."""
    if request.param == "naive":
        return relayed.naive
    return partial(relayed.gateway, direct=request.param == "direct")
