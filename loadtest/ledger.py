"""The books of a run: every scheduled request ends up ok, cancelled, failed (by class) or unsent, and nowhere twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgspec

from loadtest.histogram import DurationHistogram
from loadtest.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """
    One request. Moments (`..._s` of the first block) are seconds since the start of the run on a monotonic clock.

    Durations are properties, so each has one definition. A token-bearing event has text, reasoning or a piece of a tool
    call in it; TTFT counts from sending, `e2e_s` from the scheduled moment.
    """

    request_id: str
    scheduled_s: float
    outcome: Outcome
    sent_s: float | None = None
    """When its first byte was handed to the socket; None: never sent."""
    connect_s: float | None = None
    """What opening its connection took; None: it used one that was open."""
    first_token_s: float | None = None
    first_visible_s: float | None = None
    """The first event with text that a user sees (reasoning and tool calls are not)."""
    last_token_s: float | None = None
    ended_s: float = 0.0
    """When it was settled, whatever the outcome."""
    kind: str = "chat"
    """What it was within its scenario; a closed set per scenario."""
    family: str = "chat"
    tenant: str | None = None
    session: int = 0
    """Requests of one conversation share it; unique within a run."""
    status: int = 0
    detail: str = ""
    """For people: why it failed, or why it was not sent."""
    gaps_s: Sequence[float] = ()
    """Seconds between token-bearing events: one fewer than `token_events`."""
    chunk_tokens: Sequence[int] = ()
    """Tokens in each token-bearing event, where the server's continuous usage told them; otherwise empty."""
    other_choices_s: Sequence[float] = ()
    """Moments of events with a choice but no token (role, empty finish): other tools count these."""
    token_events: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    server_timing: str | None = None
    """The answer's Server-Timing header."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from sending."""
        return _between(self.sent_s, self.first_token_s)

    @property
    def ttft_from_schedule_s(self) -> float | None:
        """Time to first token, from the scheduled moment: includes what the load generator itself was late."""
        return _between(self.scheduled_s, self.first_token_s)

    @property
    def ttfvt_s(self) -> float | None:
        """Time to first visible token, from sending."""
        return _between(self.sent_s, self.first_visible_s)

    @property
    def e2e_s(self) -> float | None:
        """Scheduled moment to last token; for an answer that is no stream, to its last byte."""
        return _between(self.scheduled_s, self._last_s)

    @property
    def service_s(self) -> float | None:
        """Sending to last token (or last byte): what the server took."""
        return _between(self.sent_s, self._last_s)

    @property
    def send_lag_s(self) -> float | None:
        """How late the client was: scheduled moment to sending, without what the connection took."""
        return None if self.sent_s is None else self.sent_s - self.scheduled_s - (self.connect_s or 0.0)

    @property
    def tpot_s(self) -> float | None:
        """
        Time per output token: (last - first) / (tokens - tokens of the first event).

        None without usage, or when no token came after the first event.
        """
        span = _between(self.first_token_s, self.last_token_s)
        if span is None or self.output_tokens is None:
            return None
        later = self.output_tokens - (self.chunk_tokens[0] if self.chunk_tokens else 1)
        return span / later if later > 0 else None

    @property
    def _last_s(self) -> float | None:
        if self.last_token_s is not None or self.status != 200:
            return self.last_token_s
        return self.ended_s

    def token_times_s(self) -> Iterator[float]:
        """The moment of each token-bearing event."""
        return iter(()) if self.first_token_s is None else accumulate(self.gaps_s, initial=self.first_token_s)

    def tokens_per_event(self) -> Sequence[float]:
        """Tokens in each token-bearing event: as told by the server, otherwise its total spread evenly over them."""
        if self.chunk_tokens or not self.token_events:
            return self.chunk_tokens
        total = self.token_events if self.output_tokens is None else self.output_tokens
        return (total / self.token_events,) * self.token_events

    def itl_s(self) -> Iterator[float]:
        """Per-token latency: each gap divided by the tokens that came with the event after it, once per token."""
        for gap, tokens in zip(self.gaps_s, self.chunk_tokens[1:], strict=False):
            if tokens > 0:
                yield from (gap / tokens,) * tokens

    def to_json(self) -> dict[str, Any]:
        """As in the raw log. Gaps are microseconds in integers, since they are most of the file."""
        value: dict[str, Any] = {name: getattr(self, name) for name in RequestRecord.__slots__ if name not in _ARRAYS}
        value["gaps_us"] = [round(gap * 1e6) for gap in self.gaps_s]
        value["chunk_tokens"] = list(self.chunk_tokens)
        value["other_choices_s"] = list(self.other_choices_s)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RequestRecord:
        """The inverse of `to_json`, to a microsecond per gap."""
        fields = {key: entry for key, entry in value.items() if key != "gaps_us"}
        return msgspec.convert({**fields, "gaps_s": [gap / 1e6 for gap in value["gaps_us"]]}, cls)


_ARRAYS = frozenset({"gaps_s", "chunk_tokens", "other_choices_s"})


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass(slots=True)
class Durations:
    """Histograms of successes only, so that quick failures never improve a percentile."""

    ttft: DurationHistogram = field(default_factory=DurationHistogram)
    ttft_from_schedule: DurationHistogram = field(default_factory=DurationHistogram)
    ttfvt: DurationHistogram = field(default_factory=DurationHistogram)
    gaps: DurationHistogram = field(default_factory=DurationHistogram)
    """Raw gaps between token-bearing events: what a user sees, stalls included (ICL)."""
    itl: DurationHistogram = field(default_factory=DurationHistogram)
    """Latency per token (ITL); empty unless the server tells the tokens of each event."""
    tpot: DurationHistogram = field(default_factory=DurationHistogram)
    e2e: DurationHistogram = field(default_factory=DurationHistogram)
    service: DurationHistogram = field(default_factory=DurationHistogram)

    def add(self, record: RequestRecord) -> None:
        """Counts one success."""
        for histogram, value in (
            (self.ttft, record.ttft_s),
            (self.ttft_from_schedule, record.ttft_from_schedule_s),
            (self.ttfvt, record.ttfvt_s),
            (self.tpot, record.tpot_s),
            (self.e2e, record.e2e_s),
            (self.service, record.service_s),
        ):
            if value is not None:
                histogram.add(value)
        for gap in record.gaps_s:
            self.gaps.add(gap)
        for latency in record.itl_s():
            self.itl.add(latency)

    def to_json(self) -> dict[str, Any]:
        """All histograms, by name."""
        return {name: getattr(self, name).to_json() for name in Durations.__slots__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Durations:
        """The inverse of `to_json`."""
        return cls(**{name: DurationHistogram.from_json(value[name]) for name in cls.__slots__})


@dataclass(slots=True)
class Ledger:
    """Counts of a run and its records. Histograms are made from the records when asked for: see `durations`."""

    scheduled: int = 0
    ok: int = 0
    cancelled: int = 0
    unsent: int = 0
    in_flight: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    unsent_reasons: Counter[str] = field(default_factory=Counter)
    samples: dict[str, str] = field(default_factory=dict)
    """One detail per class of failure, the first seen."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    token_events: int = 0
    """Token-bearing events of all requests, failed ones included."""
    without_usage: int = 0
    first_sent_s: float | None = None
    last_ended_s: float = 0.0
    records: list[RequestRecord] = field(default_factory=list)
    _durations: Durations = field(default_factory=Durations)
    _counted: int = 0

    @classmethod
    def of(cls, records: Iterable[RequestRecord]) -> Ledger:
        """The books of these requests alone: a kind, a tenant, a window, a merged run."""
        ledger = cls()
        for record in records:
            ledger.schedule()
            ledger.settle(record)
        return ledger

    @property
    def failed(self) -> int:
        """Requests that failed, of any class."""
        return sum(self.failures.values())

    @property
    def sent(self) -> int:
        """Requests that ended after being sent, or for which no connection was to be had."""
        return self.ok + self.cancelled + self.failed

    @property
    def balanced(self) -> bool:
        """Whether every scheduled request is in exactly one place."""
        return self.scheduled == self.ok + self.cancelled + self.failed + self.unsent + self.in_flight

    @property
    def durations(self) -> Durations:
        """Histograms of all successes. Counted here and not while requests run: a long answer would hold others up."""
        for record in self.records[self._counted :]:
            if record.outcome is Outcome.OK:
                self._durations.add(record)
        self._counted = len(self.records)
        return self._durations

    def schedule(self) -> None:
        """A request is due now."""
        self.scheduled += 1
        self.in_flight += 1

    def settle(self, record: RequestRecord) -> None:
        """A scheduled request has come to its end."""
        self.in_flight -= 1
        self.records.append(record)
        self.last_ended_s = max(self.last_ended_s, record.ended_s)
        if record.sent_s is not None:
            earliest = self.first_sent_s
            self.first_sent_s = record.sent_s if earliest is None else min(earliest, record.sent_s)
        self.token_events += record.token_events
        match record.outcome:
            case Outcome.OK:
                self._settle_ok(record)
            case Outcome.CANCELLED:
                self.cancelled += 1
            case Outcome.UNSENT:
                self.unsent += 1
                self.unsent_reasons[record.detail] += 1
            case _:
                name = failure_class(record)
                self.failures[name] += 1
                self.samples.setdefault(name, record.detail)

    def _settle_ok(self, record: RequestRecord) -> None:
        self.ok += 1
        self.prompt_tokens += record.prompt_tokens or 0
        self.cached_tokens += record.cached_tokens or 0
        self.output_tokens += record.output_tokens or 0
        self.without_usage += record.output_tokens is None and record.prompt_tokens is None

    @property
    def wall_s(self) -> float:
        """Seconds from the first request sent to the last one ended."""
        return max(self.last_ended_s - (self.first_sent_s or 0.0), 1e-9)

    def failure_share(self) -> float:
        """Failed and unsent requests among all scheduled ones; 1.0 when nothing was scheduled."""
        return (self.failed + self.unsent) / self.scheduled if self.scheduled else 1.0

    def to_json(self) -> dict[str, Any]:
        """Counts and histograms; the records are the raw log's."""
        return {
            "scheduled": self.scheduled,
            "ok": self.ok,
            "cancelled": self.cancelled,
            "failed": self.failed,
            "unsent": self.unsent,
            "failures": dict(self.failures),
            "unsent_reasons": dict(self.unsent_reasons),
            "failure_samples": self.samples,
            "first_sent_s": self.first_sent_s,
            "last_ended_s": self.last_ended_s,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "token_events": self.token_events,
            "requests_without_usage": self.without_usage,
            "histograms": self.durations.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ledger:
        """Counts and histograms of a stored run, without records."""
        return cls(
            scheduled=value["scheduled"],
            ok=value["ok"],
            cancelled=value["cancelled"],
            unsent=value["unsent"],
            failures=Counter(value["failures"]),
            unsent_reasons=Counter(value["unsent_reasons"]),
            samples=dict(value["failure_samples"]),
            prompt_tokens=value["prompt_tokens"],
            cached_tokens=value["cached_tokens"],
            output_tokens=value["output_tokens"],
            token_events=value["token_events"],
            without_usage=value["requests_without_usage"],
            first_sent_s=value["first_sent_s"],
            last_ended_s=value["last_ended_s"],
            _durations=Durations.from_json(value["histograms"]),
        )


def failure_class(record: RequestRecord) -> str:
    """The name under which a failure is counted: its outcome, for a status the status itself."""
    return f"http_{record.status}" if record.outcome is Outcome.HTTP_STATUS else record.outcome.value
