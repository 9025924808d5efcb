"""A collector, and a tracer that sends to it; everything on the product's own loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.tracing import Tracing, TracingSetup, open_tracing
from tests.tracing.collector import Collector


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvloop, as the gateway process runs."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def tracing(collector: Collector) -> Iterator[Tracing]:
    """Traces of every request."""
    tracing = open_tracing(TracingSetup(collector.url, send_every_s=0.02, version="1.2.3", instance="here/0"))
    yield tracing
    tracing.close()
