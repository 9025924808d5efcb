"""Whether OpenTelemetry is there, and the one place that imports what uses it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from gateway.errors import ConfigurationError, EnvironmentProblem

if TYPE_CHECKING:
    from gateway.tracing.spans import SpanTracer

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
DEFAULT_PATH = "/v1/traces"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class TracingSetup:
    """
    Where spans go, and which.

    Args:
        endpoint: Of the collector, OTLP over HTTP; without a path, `/v1/traces` is meant.
        sample_ratio: Of the requests that come without a trace context of their own, 0 to 1.
        trust_incoming: Continue the clients' traces, sampled or not; otherwise begin new ones, linked to them.
        headers: Sent to the collector, such as its key.
        version, instance: Of this service and process, for the resource.
        send_every_s: Longest time that a span waits for others to be sent with.
        give_up_s: On one batch, tries included.
    """

    endpoint: str
    sample_ratio: float = 1.0
    trust_incoming: bool = True
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str = ""
    instance: str = ""
    send_every_s: float = 1.0
    give_up_s: float = 5.0

    @property
    def url(self) -> str:
        """Where spans are posted."""
        parts = urlsplit(self.endpoint)
        return self.endpoint if parts.path.strip("/") else parts._replace(path=DEFAULT_PATH).geturl()


class Tracing(Protocol):
    """Traces that are on."""

    @property
    def tracer(self) -> SpanTracer:
        """For the relay."""
        ...

    @property
    def dropped(self) -> int:
        """Spans that did not reach the collector, so far."""
        ...

    def close(self) -> None:
        """Send what waits, for at most two seconds. Blocks."""
        ...


def require_installed() -> None:
    """Raises EnvironmentProblem when traces are configured and OpenTelemetry is not installed."""
    try:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError as exc:  # of a parent package
        missing = [exc.name or "opentelemetry"]
    if missing:
        raise EnvironmentProblem(
            f"traces.endpoint is set, but OpenTelemetry is not installed in this environment ({missing[0]} is missing)",
            fix="pip install 'vllm-gateway[traces]', or remove traces from the configuration",
        )


def require_usable(endpoint: str | None, headers_file: Path | None) -> None:
    """
    What a configuration with traces needs to be there, before anything is started.

    Raises:
        EnvironmentProblem: OpenTelemetry is not installed.
        ConfigurationError: The headers cannot be read.
    """
    if endpoint is not None:
        require_installed()
        if headers_file is not None:
            read_headers(headers_file)


def read_headers(file: Path) -> dict[str, str]:
    """
    Headers for the collector, one `Name: value` a line.

    Raises ConfigurationError for a file that cannot be read or holds something else; what it holds is not repeated.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{file} cannot be read: {exc}", key="traces.headers_file") from exc
    headers = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        # What no header can carry would fail at every batch.
        fits = _HEADER_NAME.fullmatch(name.strip()) and value.isascii() and value.strip().isprintable()
        if line.strip() and not (colon and fits):
            raise ConfigurationError(
                f"expected `Name: value` in line {number} of {file}, found something else", key="traces.headers_file"
            )
        if colon:
            headers[name.strip()] = value.strip()
    return headers


def open_tracing(setup: TracingSetup) -> Tracing:
    """Traces for this process, to be closed at its end. Raises EnvironmentProblem when OpenTelemetry is missing."""
    require_installed()
    from gateway.tracing.otlp import OtlpTracing

    return OtlpTracing(setup)
