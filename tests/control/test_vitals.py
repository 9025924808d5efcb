"""Tokens per second and KV cache use, from a worker's own metrics as it gives them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import anyio
import pytest

from gateway.clock import SystemClock
from gateway.control.scrape import Page, ScrapeError, Scraper
from gateway.control.vitals import Vitals, VitalSigns, highest, total
from gateway.log import EventLog
from gateway.types import WorkerAddress, WorkerState, WorkerView

pytestmark = pytest.mark.anyio


class Pages:
    """A scraper whose pages and times the test writes; None: the worker gives no metrics."""

    def __init__(self) -> None:
        self.tokens: float | None = 0.0
        self.usage = 0.25
        self.now_s = 10.0
        self.asked: list[str] = []
        self.kept: set[str] = set()
        self.raises: Exception | None = None

    def forget_all_but(self, workers: Collection[str]) -> None:
        self.kept = set(workers)

    async def page(self, worker: WorkerView) -> Page:
        self.asked.append(worker.name)
        if self.raises is not None:
            raise self.raises
        if self.tokens is None:
            raise ScrapeError("no")
        text = (
            f'vllm:generation_tokens_total{{engine="0"}} {self.tokens}\n'
            f'vllm:kv_cache_usage_perc{{engine="0"}} {self.usage}\n'
            'vllm:kv_cache_usage_perc{engine="1"} 0.1\n'
        )
        return Page(text.encode(), "text/plain", worker.launch_id, self.now_s)


def silent() -> EventLog:
    return EventLog(list[bytes]().append, SystemClock())


def view(launch_id: str = "l1", state: WorkerState = WorkerState.READY) -> WorkerView:
    return WorkerView("m-0", "m", state, launch_id, WorkerAddress(host="127.0.0.1", port=1), 0.0)


async def looked(signs: VitalSigns, workers: Callable[[], list[WorkerView]]) -> None:
    """One round of looks."""
    async with anyio.create_task_group() as group:
        group.start_soon(signs.run, workers)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


async def test_the_rate_is_what_was_generated_between_two_looks() -> None:
    """Unknown after the first; the KV cache's use is that of the fullest engine; another launch starts anew."""
    pages = Pages()
    signs = VitalSigns(cast(Scraper, pages), silent())
    await looked(signs, lambda: [view()])
    first = signs.of("m-0", "l1")
    pages.tokens, pages.now_s = 500.0, 15.0
    await looked(signs, lambda: [view()])
    second = signs.of("m-0", "l1")
    pages.tokens, pages.now_s = 3.0, 20.0
    await looked(signs, lambda: [view()])
    fallen = signs.of("m-0", "l1")
    await looked(signs, lambda: [view("l2")])

    assert Vitals(None, 0.25) == first
    assert Vitals(100.0, 0.25) == second
    assert Vitals(None, 0.25) == fallen
    assert Vitals() == signs.of("m-0", "l1")
    assert Vitals(None, 0.25) == signs.of("m-0", "l2")


async def test_a_worker_that_serves_nobody_is_not_asked() -> None:
    pages = Pages()
    signs = VitalSigns(cast(Scraper, pages), silent())
    await looked(signs, lambda: [view(state=WorkerState.STARTING)])

    assert [] == pages.asked


async def test_a_worker_without_metrics_has_no_vitals() -> None:
    pages = Pages()
    signs = VitalSigns(cast(Scraper, pages), silent())
    await looked(signs, lambda: [view()])
    pages.tokens = None
    await looked(signs, lambda: [view()])

    assert Vitals() == signs.of("m-0", "l1")


def test_metrics_of_similar_names_are_told_apart() -> None:
    text = 'a_total{x="1"} 2\na_total{x="2"} 3\na_total_created{x="1"} 9\n# a_total 7\n'

    assert 5.0 == total(text, "a_total")
    assert 3.0 == highest(text, "a_total")
    assert None is total(text, "b")
    assert None is total("a_total nonsense", "a_total")


def test_a_series_that_says_nan_says_nothing() -> None:
    """Engines give it where nothing was measured; a sum with it would be none."""
    text = 'a{x="1"} NaN\na{x="2"} 3\n'

    assert 3.0 == total(text, "a")
    assert 3.0 == highest(text, "a")
    assert None is highest('a{x="1"} NaN', "a")


async def test_a_defect_here_is_logged_and_ends_nothing() -> None:
    """The looks run in the supervisor's task group, where an exception would end the whole fleet."""
    pages, lines = Pages(), list[bytes]()
    pages.raises = RuntimeError("unheard of")
    signs = VitalSigns(cast(Scraper, pages), EventLog(lines.append, SystemClock()))
    await looked(signs, lambda: [view(), view(state=WorkerState.STARTING)])

    assert Vitals() == signs.of("m-0", "l1")
    assert 1 == len(lines)
    assert b"unheard of" in lines[0]
    assert {"m-0"} == pages.kept
