"""Fixtures every test folder may use, and the rule that in continuous integration (`CI` is set) nothing is skipped."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped test proves nothing: in continuous integration it counts as failed."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in continuous integration: {report.longrepr}"
    return report


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, the loop the product runs on."""
    return "asyncio"
