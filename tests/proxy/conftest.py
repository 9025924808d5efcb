"""Every relay test runs on uvloop, the product's loop, and over both ways of writing to the client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest

from tests.proxy import served

Gateway = Callable[..., AbstractAsyncContextManager[served.Served]]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvloop, as the gateway process runs."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(params=["direct", "portable"])
def gateway(request: pytest.FixtureRequest) -> Gateway:
    """`served.gateway` over one of the two paths."""
    return partial(served.gateway, direct=request.param == "direct")
