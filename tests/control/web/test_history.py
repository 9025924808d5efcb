"""What the console knows of the last minutes: rates, percentiles and failures out of totals that only grow."""

from __future__ import annotations

from collections.abc import Collection, ItemsView

import anyio
import pytest

from gateway.control.web.history import EVERY_S, KEPT, History, quantile
from gateway.log import EventLog
from gateway.metrics.catalogue import (
    IN_FLIGHT,
    OUTPUT_TOKENS,
    REQUESTS,
    TIME_TO_FIRST_TOKEN,
    Metric,
)
from gateway.metrics.layout import SeriesKey
from gateway.metrics.totals import Values


class Clock:
    """Time moved by hand; the wall clock is a million seconds ahead, until it is set anew."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.ahead_s = 1_000_000.0

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return self.ahead_s + self.now_s


class Fleet:
    """Totals changed by hand."""

    def __init__(self) -> None:
        self.values: Values = {}
        self.clock = Clock()
        self.lines: list[bytes] = []
        self.history = History(self.totals, lambda: ["m"], self.clock, EventLog(self.lines.append, self.clock))

    def totals(self, metrics: Collection[Metric]) -> Values:
        assert {metric for metric, _ in self.values} <= set(metrics)
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


def test_a_wall_clock_that_is_set_back_makes_no_sample_older_than_the_one_before() -> None:
    """The page asks for what is newer than what it has; it would stand still until that time is reached."""
    fleet = Fleet()
    fleet.set(REQUESTS, "m", "chat", "internal", value=1.0)
    fleet.look()
    fleet.clock.ahead_s -= 3600.0
    fleet.set(REQUESTS, "m", "chat", "internal", value=2.0)
    fleet.look()
    (failure,) = fleet.history.failures()

    first, second = (sample.at_unix_s for sample in fleet.history.samples)
    assert (1_000_050.0, 1_000_050.0 + EVERY_S) == (first, second)
    assert second == failure.last_unix_s


def test_every_series_is_read_once_however_many_models_there_are() -> None:
    """It runs in the supervisor's event loop: models times series would take seconds of it."""

    class Counted(dict[SeriesKey, list[float]]):
        looked = 0

        def items(self) -> ItemsView[SeriesKey, list[float]]:
            self.looked += 1
            return super().items()

        def get(self, key: object, default: object = None) -> list[float]:
            raise AssertionError("looked for one by one")

    names = [f"m{number}" for number in range(50)]
    values = Counted({(OUTPUT_TOKENS, (name,)): [1.0] for name in names})
    clock = Clock()
    History(lambda metrics: values, lambda: names, clock, EventLog(list[bytes]().append, clock)).look()

    assert 1 == values.looked


@pytest.mark.anyio
async def test_a_look_that_fails_is_logged_and_the_next_one_is_taken() -> None:
    """It runs in the supervisor's task group, where an exception would end the whole fleet."""
    fleet = Fleet()
    fleet.set(REQUESTS, "m", value=1.0)  # labels are missing
    async with anyio.create_task_group() as group:
        group.start_soon(fleet.history.run)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    assert [] == list(fleet.history.samples)
    assert 1 == len(fleet.lines)
    assert b"console_sample_failed" in fleet.lines[0]
