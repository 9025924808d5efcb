"""The dashboards, one module each."""

from __future__ import annotations

from grafana.page import Page
from grafana.pages import engines, gpu, loadtest, overview, routing, tenants, workers

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    routing.PAGE,
    workers.PAGE,
    engines.PAGE,
    tenants.PAGE,
    gpu.PAGE,
    loadtest.PAGE,
)
"""In the order in which they are read."""
