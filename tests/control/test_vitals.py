"""Tokens per second and KV cache use, from a worker's own metrics as it gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import anyio
import pytest

from gateway.control.scrape import Page, ScrapeError, Scraper
from gateway.control.vitals import Vitals, VitalSigns, highest, total
from gateway.types import WorkerAddress, WorkerState, WorkerView

pytestmark = pytest.mark.anyio


class Pages:
    """A scraper whose pages and times the test writes; None: the worker gives no metrics."""

    def __init__(self) -> None:
        self.tokens: float | None = 0.0
        self.usage = 0.25
        self.now_s = 10.0
        self.asked: list[str] = []

    async def page(self, worker: WorkerView) -> Page:
        self.asked.append(worker.name)
        if self.tokens is None:
            raise ScrapeError("no")
        text = (
            f'vllm:generation_tokens_total{{engine="0"}} {self.tokens}\n'
            f'vllm:kv_cache_usage_perc{{engine="0"}} {self.usage}\n'
            'vllm:kv_cache_usage_perc{engine="1"} 0.1\n'
        )
        return Page(text.encode(), "text/plain", worker.launch_id, self.now_s)


class NoClock:
    def monotonic(self) -> float:
        return 0.0

    def unix(self) -> float:
        return 0.0


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
    signs = VitalSigns(cast(Scraper, pages), NoClock())
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
    signs = VitalSigns(cast(Scraper, pages), NoClock())
    await looked(signs, lambda: [view(state=WorkerState.STARTING)])

    assert [] == pages.asked


async def test_a_worker_without_metrics_has_no_vitals() -> None:
    pages = Pages()
    signs = VitalSigns(cast(Scraper, pages), NoClock())
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
