"""Errors that repeat: told a few times, then counted, and nothing of the count is lost."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from typing import Any

import pytest

from gateway.log import EventLog
from gateway.log.repeats import BURST, MAX_KEYS, WINDOW_S, Repeats
from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Family, Outcome


class FakeClock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return 1_764_441_913.0 + self.now_s


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lines() -> list[bytes]:
    return []


@pytest.fixture
def log(lines: list[bytes], clock: FakeClock) -> Iterator[EventLog]:
    log = EventLog(lines.append, clock)
    yield log
    log.close()


def told(lines: list[bytes]) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines]


def test_the_same_error_is_told_a_few_times_and_then_counted(
    log: EventLog, lines: list[bytes], clock: FakeClock
) -> None:
    """After the minute one line says how many more there were, and which; then the next burst is told again."""
    for number in range(1000):
        log.event("log", level="error", logger="gateway.proxy", message="it broke", lived_s=number / 3)
    during = len(lines)
    clock.now_s += WINDOW_S
    log.event("something_else")
    log.event("log", level="error", logger="gateway.proxy", message="it broke")

    assert BURST == during
    summary, other, again = told(lines[during:])
    assert ("repeated", "warning", "log", 990) == (summary["event"], summary["level"], summary["of"], summary["times"])
    assert ("gateway.proxy", "it broke") == (summary["logger"], summary["message"])
    assert ("something_else", "log") == (other["event"], again["event"])


def test_different_errors_do_not_use_up_each_other_s_share(log: EventLog, lines: list[bytes]) -> None:
    """Another worker, another message: another error."""
    for _ in range(BURST + 5):
        log.event("gpu_quarantined", level="error", gpu=0)
        log.event("gpu_quarantined", level="error", gpu=1)

    assert [BURST, BURST] == [sum(line["gpu"] == gpu for line in told(lines)) for gpu in (0, 1)]


def test_errors_that_are_all_different_are_bounded_too(log: EventLog, lines: list[bytes]) -> None:
    """A message with an address in it is a new one each time."""
    for number in range(20 * MAX_KEYS):
        log.event("log", level="warning", message=f"task at {number:#x} was lost")

    assert MAX_KEYS + BURST == len(lines)


def test_what_was_kept_back_is_told_at_the_end(lines: list[bytes], clock: FakeClock) -> None:
    """Also when nothing is logged any more."""
    log = EventLog(lines.append, clock)
    for _ in range(BURST + 3):
        log.event("keys_unreadable", level="error", detail="no such file")
    log.close()
    log.close()

    assert ("repeated", 3) == (told(lines)[-1]["event"], told(lines)[-1]["times"])
    assert BURST + 1 == len(lines)


def test_request_lines_and_news_are_never_left_out(log: EventLog, lines: list[bytes]) -> None:
    """The sums over the request lines must be those of the metrics, also for requests that fail."""
    for _ in range(100):
        log.request(ExchangeRecord("r", Endpoint.SCORE, Family.PLAIN, 0.0, outcome=Outcome.NO_WORKER))
        log.event("worker_ready", worker="llama-0")

    assert 200 == len(lines)


def test_two_threads_that_end_the_same_window_tell_of_it_once(clock: FakeClock) -> None:
    """Libraries log from threads of their own; the one that comes second must neither fail nor tell it again."""
    repeats = Repeats(clock)
    for _ in range(BURST + 3):
        repeats.tells("broken")
    clock.now_s += WINDOW_S
    second: list[list[tuple[object, int]]] = []

    class Windows(dict[Hashable, Any]):
        """Lets the other thread finish between the look and the taking out."""

        def pop(self, key: Hashable, *default: Any) -> Any:
            if not second:
                second.append([])
                second[0] += repeats.over()
            return super().pop(key, *default)

    repeats._windows = Windows(repeats._windows)
    first = repeats.over()

    assert [("broken", 3)] == [*first, *second[0]]
