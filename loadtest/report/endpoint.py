"""The HTTP endpoint that Prometheus scrapes while a run lasts: loopback only, gone with the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from loadtest.ledger import Ledger
from loadtest.report.metrics import RunCollector, Sample
from loadtest.target import UsageError


class MetricsEndpoint:
    """
    Serves `/metrics` inside a `with` block, on any free port for port 0.

    The server's threads are greenlets where gevent has patched the standard library, as in a load test.
    """

    def __init__(
        self,
        port: int,
        settings: Mapping[str, Any],
        ledger: Callable[[], Ledger],
        latest: Callable[[], Sample | None],
    ) -> None:
        self._port = port
        self._registry = CollectorRegistry()
        self._registry.register(RunCollector(settings, lambda: (ledger(), latest())))

    def __enter__(self) -> MetricsEndpoint:
        """
        Starts to listen.

        Raises:
            UsageError: the port is taken.
        """
        try:
            self._server, self._thread = start_http_server(self._port, "127.0.0.1", self._registry)
        except OSError as error:
            raise UsageError(
                f"expected port {self._port} to be free for metrics, found {error}: set --metrics-port (0: any)"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it and gives the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """What to scrape."""
        return f"http://127.0.0.1:{self._server.server_port}/metrics"
