"""The books of all load processes together: exact, since they are made from every single record. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.ledger import Ledger
from loadtest.process_report import ProcessReport
from loadtest.result import TimelineSample


@dataclass(slots=True)
class MergedRun:
    """Takes the reports of the processes as they come; `sample` closes one second of the timeline."""

    ledger: Ledger = field(default_factory=Ledger)
    timeline: list[TimelineSample] = field(default_factory=list)
    loop_lags_s: list[float] = field(default_factory=list)
    cpu_share_max: float = 0.0
    process_events_per_s_peak: float = 0.0
    finished: set[int] = field(default_factory=set)
    """Processes whose final report is in."""
    locust_requests: int = 0
    locust_failures: int = 0
    _latest: dict[int, ProcessReport] = field(default_factory=dict)
    _ttfts: list[float] = field(default_factory=list)
    _send_lag: float = 0.0

    def take(self, report: ProcessReport) -> None:
        """Books what is new in a report."""
        before = self._latest.get(report.process)
        due = report.scheduled - (before.scheduled if before else 0)
        self._latest[report.process] = report
        for _ in range(due):
            self.ledger.schedule()
        for record in report.records:
            self.ledger.settle(record)
        self.loop_lags_s += report.loop_lags_s
        self.cpu_share_max = max(self.cpu_share_max, report.cpu_share)
        self.process_events_per_s_peak = max(self.process_events_per_s_peak, report.events_per_s)
        self._ttfts += report.ttfts_s
        self._send_lag = max(self._send_lag, report.send_lag_max_s)
        if report.final:
            self.finished.add(report.process)
            self.locust_requests += report.locust_requests
            self.locust_failures += report.locust_failures

    def sample(self, at_s: float, *, closed_loop: bool) -> TimelineSample:
        """The state of all processes as last told."""
        ledger, latest = self.ledger, self._latest.values()
        sample = TimelineSample(
            at_s=at_s,
            scheduled=ledger.scheduled,
            sent=sum(report.sent for report in latest),
            ok=ledger.ok,
            failed=ledger.failed,
            unsent=ledger.unsent,
            in_flight=ledger.in_flight,
            token_events=sum(report.token_events for report in latest),
            output_tokens=sum(report.output_tokens for report in latest),
            ttft_p50_s=_median(self._ttfts),
            send_lag_max_s=self._send_lag,
            cancelled=ledger.cancelled,
            users=sum(report.users for report in latest) if closed_loop else None,
        )
        self.timeline.append(sample)
        self._ttfts, self._send_lag = [], 0.0
        return sample

    def cpu_us_per_event(self) -> float | None:
        """Processor time of all load processes for each token event, everything else they do included."""
        events = sum(report.token_events for report in self._latest.values())
        return sum(report.cpu_s for report in self._latest.values()) / events * 1e6 if events else None

    def events_per_s_peak(self) -> float:
        """The busiest second of all processes together."""
        peak, at, events = 0.0, 0.0, 0
        for sample in self.timeline:
            if sample.at_s - at >= 0.5:
                peak = max(peak, (sample.token_events - events) / (sample.at_s - at))
                at, events = sample.at_s, sample.token_events
        return peak


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[(len(values) - 1) // 2] if values else None
