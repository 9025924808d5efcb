"""Exchanges are counted some at a time: all of them, in their order, and soon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from gateway.metrics import GatheredCounters, Layout, SlotCounters, Totals
from gateway.metrics.catalogue import IN_FLIGHT
from gateway.metrics.gathering import GATHER_S, MOST
from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Family, Outcome

LAYOUT = Layout(("m",))


class Later:
    """Functions that a loop would call later."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.due.append((delay_s, call))

    def pass_by(self) -> None:
        due, self.due = self.due, []
        for _, call in due:
            call()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def counters(lines: list[str]) -> Iterator[tuple[SlotCounters, Callable[[], float]]]:
    """Counters whose request lines are ids, and what they say is in flight."""
    totals = Totals()
    board = totals.create(LAYOUT)

    def line(record: ExchangeRecord) -> None:
        if record.request_id == "defect":
            raise RuntimeError("cannot be written")
        lines.append(record.request_id)

    yield SlotCounters(LAYOUT, board.cells, line), lambda: board.cells[LAYOUT.offset(IN_FLIGHT, "m")]
    totals.retire(board)


def ended(request_id: str, body: bytes = b"") -> ExchangeRecord:
    return ExchangeRecord(request_id, Endpoint.SCORE, Family.PLAIN, 0.0, model="m", outcome=Outcome.OK, body=body)


def test_what_has_ended_is_counted_a_moment_later(
    counters: tuple[SlotCounters, Callable[[], float]], lines: list[str]
) -> None:
    """Until then it is in flight; one timer serves all that end meanwhile, and the next one begins anew."""
    later = Later()
    recorder = GatheredCounters(counters[0], later)
    for _ in range(3):
        recorder.started("m", "")

    recorder.finished(ended("a"))
    recorder.finished(ended("b"))

    assert [GATHER_S] == [delay_s for delay_s, _ in later.due]
    assert ([], 3) == (lines, counters[1]())
    later.pass_by()
    assert (["a", "b"], 1) == (lines, counters[1]())
    assert [] == later.due
    recorder.finished(ended("c"))
    assert 1 == len(later.due)
    later.pass_by()
    assert (["a", "b", "c"], 0) == (lines, counters[1]())


def test_many_do_not_wait_and_a_flush_takes_all(
    counters: tuple[SlotCounters, Callable[[], float]], lines: list[str]
) -> None:
    """Under load no more than `MOST` are counted at once, and still with one timer only."""
    later = Later()
    recorder = GatheredCounters(counters[0], later)
    names = [str(number) for number in range(2 * MOST + 1)]

    for number, name in enumerate(names):
        recorder.started("m", "")
        recorder.finished(ended(name))
        assert (number + 1) // MOST * MOST == len(lines)

    assert 1 == len(later.due)
    recorder.flush()
    assert names == lines
    later.pass_by()
    assert (names, 0) == (lines, counters[1]())


def test_one_with_its_prompt_does_not_wait(
    counters: tuple[SlotCounters, Callable[[], float]], lines: list[str]
) -> None:
    """Lines of megabytes are not gathered."""
    recorder = GatheredCounters(counters[0], Later())
    for name, body in (("a", b""), ("b", b"prompt")):
        recorder.started("m", "")
        recorder.finished(ended(name, body))

    assert (["a", "b"], 0) == (lines, counters[1]())


def test_without_a_timer_the_next_one_asks_again(
    counters: tuple[SlotCounters, Callable[[], float]], lines: list[str]
) -> None:
    """A loop that cannot call later, as one that is closing, does not leave the recorder waiting for ever."""
    later = Later()
    refused = [True]

    def once(delay_s: float, call: Callable[[], None]) -> None:
        if refused.pop():
            raise RuntimeError("no running event loop")

    recorder = GatheredCounters(counters[0], lambda delay_s, call: (once if refused else later)(delay_s, call))
    recorder.started("m", "")
    recorder.started("m", "")
    with pytest.raises(RuntimeError):
        recorder.finished(ended("a"))

    recorder.finished(ended("b"))
    later.pass_by()

    assert (["a", "b"], 0) == (lines, counters[1]())


def test_a_defect_in_one_costs_the_others_nothing(
    counters: tuple[SlotCounters, Callable[[], float]], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and those behind it are counted."""
    recorder = GatheredCounters(counters[0], Later())
    for name in ("a", "defect", "b"):
        recorder.started("m", "")
        recorder.finished(ended(name))

    with caplog.at_level(logging.ERROR, "gateway.metrics"):
        recorder.flush()

    assert (["a", "b"], 0) == (lines, counters[1]())
    assert ["an exchange could not be counted"] == [record.getMessage() for record in caplog.records]


def test_gaps_and_beginnings_are_counted_as_ever(counters: tuple[SlotCounters, Callable[[], float]]) -> None:
    """Only ends are gathered."""
    recorder = GatheredCounters(counters[0], Later())

    recorder.started("m", "")

    assert 1 == counters[1]()
    assert recorder.inter_token("m") is counters[0].inter_token("m")
