"""Options and paths of the chaos tests."""

from __future__ import annotations

import random
from typing import Any

import pytest

FIXED_SEED = 20_290


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--chaos-seed`, known when this folder is named on the command line."""
    parser.addoption("--chaos-seed", type=int, help=f"repeat a storm; default: {FIXED_SEED}, and a new one in soak")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvloop, as the gateway process runs."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(params=["direct", "portable"])
def direct(request: pytest.FixtureRequest) -> bool:
    """Each of the two ways of writing to the client."""
    return bool(request.param == "direct")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The storm's seed: the option; else fixed, so that `make test` is the same every time, but new in soak."""
    chosen: int | None = request.config.getoption("chaos_seed", None)
    if chosen is not None:
        return chosen
    soak = request.node.get_closest_marker("soak") is not None
    return random.SystemRandom().randrange(1_000_000) if soak else FIXED_SEED
