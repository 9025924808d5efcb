"""What a run leaves behind: settings, books, a timeline, the server's own figures, and whether it may be believed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from loadtest.ledger import Ledger, RequestRecord

FORMAT = 1
"""Of the stored result; raised when a field changes its meaning or goes."""


@dataclass(frozen=True, slots=True)
class TimelineSample:
    """The state of the run about once a second. Counts are cumulative over all processes."""

    at_s: float
    scheduled: int
    sent: int
    """Requests whose first byte was handed to a socket."""
    ok: int
    failed: int
    unsent: int
    in_flight: int
    token_events: int
    output_tokens: int
    ttft_p50_s: float | None
    """Of the requests whose first token came since the sample before."""
    send_lag_max_s: float
    """Since the sample before."""
    cancelled: int = 0
    users: int | None = None
    """Closed loop only."""


@dataclass(frozen=True, slots=True)
class ServerSample:
    """What the target's own metrics said. Counters are totals since the server's start, summed over its workers."""

    at_s: float
    running: float
    waiting: float
    kv_cache_usage: float | None = None
    """0 to 1; the mean over workers."""
    preemptions: float | None = None
    prefix_hits: float | None = None
    """Tokens found in the prefix cache."""
    prefix_queries: float | None = None


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """Whether the load generator kept up. `reasons` says in sentences why a run is invalid."""

    ceiling_events_per_s: float | None
    """Calibrated on this machine: what all its processes together can take; None: not calibrated."""
    events_per_s_peak: float
    """The busiest second."""
    send_lag_p50_s: float | None
    send_lag_p99_s: float | None
    loop_lag_p99_s: float | None
    cpu_share_max: float
    """Of one core, by the busiest process in its busiest second."""
    valid: bool
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    cpu_us_per_event: float | None = None
    """Processor time of all load processes by token events."""


@dataclass(slots=True)
class RunResult:
    """One finished run. `window` is the steady part in seconds since the start, without warm-up and tail."""

    settings: dict[str, Any]
    ledger: Ledger
    timeline: list[TimelineSample]
    server: list[ServerSample]
    health: ClientHealth
    window: tuple[float, float]
    objectives: dict[str, float] = field(default_factory=dict)
    """Thresholds by name as given, such as ttft_p95 in seconds."""

    def to_json(self) -> dict[str, Any]:
        """The stored result; the raw log is a file of its own."""
        return {
            "format": FORMAT,
            "settings": self.settings,
            "window_s": list(self.window),
            "objectives": self.objectives,
            "health": msgspec.to_builtins(self.health),
            "ledger": self.ledger.to_json(),
            "timeline": msgspec.to_builtins(self.timeline),
            "server": msgspec.to_builtins(self.server),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], records: Iterable[RequestRecord] | None = None) -> RunResult:
        """
        The inverse of `to_json`. With the raw log's records the books are made anew from them, and exact.

        Raises:
            ValueError: a format that this version does not read.
        """
        if value.get("format") != FORMAT:
            raise ValueError(f"expected a load-test result of format {FORMAT}, found {value.get('format')!r}")
        start, end = value["window_s"]
        return cls(
            settings=dict(value["settings"]),
            ledger=Ledger.from_json(value["ledger"]) if records is None else Ledger.of(records),
            timeline=msgspec.convert(value["timeline"], list[TimelineSample]),
            server=msgspec.convert(value["server"], list[ServerSample]),
            health=msgspec.convert(value["health"], ClientHealth),
            window=(start, end),
            objectives=dict(value["objectives"]),
        )
