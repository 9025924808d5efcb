"""The books of a run: every scheduled request ends up as ok, failed (by class) or unsent, and nowhere twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from loadtest.histogram import DurationHistogram
from loadtest.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds since the start of the run; end to end counts from the scheduled moment."""

    request_id: str
    scheduled_s: float
    sent_s: float | None
    outcome: Outcome
    status: int = 0
    detail: str = ""
    ttft_s: float | None = None
    ttft_from_schedule_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    token_events: int = 0
    ended_s: float = 0.0


@dataclass(slots=True)
class Ledger:
    """Counts and histograms. Durations hold successes only, so that quick failures never improve a percentile."""

    scheduled: int = 0
    ok: int = 0
    unsent: int = 0
    in_flight: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    samples: dict[str, str] = field(default_factory=dict)
    """One detail per class of failure, the first seen."""
    ttft: DurationHistogram = field(default_factory=DurationHistogram)
    ttft_from_schedule: DurationHistogram = field(default_factory=DurationHistogram)
    gaps: DurationHistogram = field(default_factory=DurationHistogram)
    tpot: DurationHistogram = field(default_factory=DurationHistogram)
    e2e: DurationHistogram = field(default_factory=DurationHistogram)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    token_events: int = 0
    without_usage: int = 0
    first_sent_s: float | None = None
    last_ended_s: float = 0.0
    records: list[RequestRecord] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Requests that failed, of any class."""
        return sum(self.failures.values())

    @property
    def balanced(self) -> bool:
        """Whether scheduled = ok + failed + unsent, as must hold when nothing is in flight."""
        return self.scheduled == self.ok + self.failed + self.unsent + self.in_flight

    def schedule(self) -> None:
        """A request is due now."""
        self.scheduled += 1
        self.in_flight += 1

    def settle_unsent(self) -> None:
        """A scheduled request was given up before a byte of it was sent."""
        self.in_flight -= 1
        self.unsent += 1

    def settle(self, record: RequestRecord) -> None:
        """A request that was sent, or whose connection failed, has ended."""
        self.in_flight -= 1
        self.records.append(record)
        self.last_ended_s = max(self.last_ended_s, record.ended_s)
        if record.sent_s is not None:
            earliest = self.first_sent_s
            self.first_sent_s = record.sent_s if earliest is None else min(earliest, record.sent_s)
        self.token_events += record.token_events
        if record.outcome is not Outcome.OK:
            name = f"http_{record.status}" if record.outcome is Outcome.HTTP_STATUS else record.outcome.value
            self.failures[name] += 1
            self.samples.setdefault(name, record.detail)
            return
        self.ok += 1
        for histogram, value in (
            (self.ttft, record.ttft_s),
            (self.ttft_from_schedule, record.ttft_from_schedule_s),
            (self.tpot, record.tpot_s),
            (self.e2e, record.e2e_s),
        ):
            if value is not None:
                histogram.add(value)
        for gap in record.gaps_s:
            self.gaps.add(gap)
        self.prompt_tokens += record.prompt_tokens or 0
        self.cached_tokens += record.cached_tokens or 0
        self.output_tokens += record.output_tokens or 0
        self.without_usage += record.output_tokens is None

    @property
    def wall_s(self) -> float:
        """Seconds from the first request sent to the last one ended."""
        return max(self.last_ended_s - (self.first_sent_s or 0.0), 1e-9)

    def failure_share(self) -> float:
        """Failed and unsent requests among all scheduled ones; 1.0 when nothing was scheduled."""
        return (self.failed + self.unsent) / self.scheduled if self.scheduled else 1.0

    def to_json(self) -> dict[str, Any]:
        """Counts, histograms and the log of requests."""
        histograms = ("ttft", "ttft_from_schedule", "gaps", "tpot", "e2e")
        return {
            "scheduled": self.scheduled,
            "ok": self.ok,
            "failed": self.failed,
            "unsent": self.unsent,
            "failures": dict(self.failures),
            "failure_samples": self.samples,
            "wall_s": self.wall_s,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "token_events": self.token_events,
            "requests_without_usage": self.without_usage,
            "histograms": {name: getattr(self, name).to_json() for name in histograms},
            "requests": [_record_json(record) for record in self.records],
        }


def _record_json(record: RequestRecord) -> dict[str, Any]:
    names = [name for name in RequestRecord.__slots__ if name != "gaps_s"]
    # Microseconds as integers: gaps are most of the file.
    return {**{name: getattr(record, name) for name in names}, "gaps_us": [round(gap * 1e6) for gap in record.gaps_s]}
