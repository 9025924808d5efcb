"""
The corpus suite: one test per known failure of relays in the field, over every relay path.

`pytest tests/corpus --relay naive` runs it against a naive httpx relay instead, which must fail most of it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.corpus import relayed
from tests.corpus.relayed import Relay

PATHS = {"gateway": ["direct", "portable"], "naive": ["naive"]}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--relay`, known when this folder is named on the command line."""
    parser.addoption("--relay", choices=sorted(PATHS), default="gateway", help="what the corpus suite runs against")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that takes `relay` runs over every path of the chosen relay."""
    if "relay" in metafunc.fixturenames:
        metafunc.parametrize("relay", PATHS[metafunc.config.getoption("relay", "gateway")], indirect=True)


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
