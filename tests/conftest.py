"""Fixtures every test folder may use."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, the loop the product runs on."""
    return "asyncio"
