"""What the console knows of the last minutes: rates, percentiles and failures out of totals that only grow."""

from __future__ import annotations

from gateway.control.web.history import EVERY_S, KEPT, History, quantile
from gateway.metrics.catalogue import (
    IN_FLIGHT,
    OUTPUT_TOKENS,
    REQUESTS,
    TIME_TO_FIRST_TOKEN,
    Metric,
)
from gateway.metrics.totals import Values


class Clock:
    """Time moved by hand; the wall clock is a million seconds ahead."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return 1_000_000.0 + self.now_s


class Fleet:
    """Totals changed by hand."""

    def __init__(self) -> None:
        self.values: Values = {}
        self.clock = Clock()
        self.history = History(self.totals, lambda: ["m"], self.clock)

    def totals(self) -> Values:
        return {key: list(cells) for key, cells in self.values.items()}

    def set(self, metric: Metric, *labels: str, value: float) -> None:
        self.values[metric, labels] = [value]

    def observe(self, metric: Metric, seconds: float, times: int) -> None:
        cells = self.values.setdefault((metric, ("m",)), [0.0] * metric.width)
        bucket = next(index for index, bound in enumerate(metric.buckets) if seconds <= bound)
        cells[bucket] += times

    def look(self) -> None:
        self.history.look()
        self.clock.now_s += EVERY_S


def test_rates_are_growth_over_the_last_ten_seconds() -> None:
    """What was counted before the first look, or more than ten seconds ago, is in no rate."""
    fleet = Fleet()
    fleet.set(OUTPUT_TOKENS, "m", value=5_000.0)
    for count in (0, 100, 200, 300, 400, 500, 500, 500, 500, 500, 500, 500):
        fleet.set(OUTPUT_TOKENS, "m", value=5_000.0 + count)
        fleet.look()

    rates = [sample.models["m"].output_tokens_per_s for sample in fleet.history.samples]
    assert 0.0 == rates[0]
    assert [50.0, 50.0, 50.0, 50.0, 50.0] == rates[1:6]
    assert 0.0 == rates[-1]


def test_percentiles_are_of_the_last_minute_and_none_without_traffic() -> None:
    """A slow minute an hour ago does not show for ever, and idle is not zero milliseconds."""
    fleet = Fleet()
    fleet.observe(TIME_TO_FIRST_TOKEN, 5.0, times=1_000)
    fleet.look()
    fleet.observe(TIME_TO_FIRST_TOKEN, 0.09, times=10)
    fleet.look()
    busy = fleet.history.samples[-1].models["m"]
    for _ in range(40):
        fleet.look()
    idle = fleet.history.samples[-1].models["m"]

    assert busy.ttft_p50_ms is not None
    assert 80.0 <= busy.ttft_p50_ms <= 100.0
    assert idle.ttft_p50_ms is None
    assert idle.itl_p95_ms is None


def test_failures_are_told_in_words_with_their_count_and_forgotten_after_ten_minutes() -> None:
    """Successes are none, and what had failed before the first look is not told as new."""
    fleet = Fleet()
    fleet.set(REQUESTS, "m", "chat", "ok", value=1.0)
    fleet.set(REQUESTS, "m", "chat", "upstream_timeout", value=7.0)
    fleet.look()
    fleet.set(REQUESTS, "m", "chat", "ok", value=9.0)
    fleet.set(REQUESTS, "m", "chat", "upstream_timeout", value=9.0)
    fleet.look()
    (told,) = fleet.history.failures()
    failing = fleet.history.samples[-1].models["m"].failed_per_s
    for _ in range(KEPT + 1):
        fleet.look()

    assert ("m", "upstream_timeout", 2) == (told.model, told.outcome, told.count)
    assert "time limit" in told.saying
    assert 1.0 == failing
    assert [] == fleet.history.failures()
    assert KEPT == len(fleet.history.samples)


def test_counts_of_now_are_as_they_are() -> None:
    fleet = Fleet()
    fleet.set(IN_FLIGHT, "m", value=3.0)
    fleet.look()

    assert 3.0 == fleet.history.samples[-1].models["m"].in_flight


def test_a_quantile_is_linear_inside_its_bucket() -> None:
    """The same reading as `histogram_quantile`, the overflow bucket included."""
    assert quantile(0.5, (1.0, 2.0, 4.0), (0, 10, 0, 0)) == 1.5
    assert quantile(0.5, (1.0, 2.0, 4.0), (5, 0, 5, 0)) == 1.0
    assert quantile(0.75, (1.0, 2.0, 4.0), (5, 0, 5, 0)) == 3.0
    assert quantile(0.99, (1.0, 2.0, 4.0), (0, 0, 0, 3)) == 4.0
    assert quantile(0.5, (1.0, 2.0, 4.0), (0, 0, 0, 0)) is None
