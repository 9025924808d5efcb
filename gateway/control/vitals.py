"""How busy each worker is, from its own metrics: tokens per second and the use of its KV cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from gateway.control.scrape import Page, ScrapeError, Scraper
from gateway.log import EventLog
from gateway.types import WorkerState, WorkerView

INTERVAL_S = 5.0
TOKENS = "vllm:generation_tokens_total"
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The second one is what releases before 0.12 called it."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """`tokens_per_s`: generated since the look before; `kv_usage`: 0 to 1. None where it is not known."""

    tokens_per_s: float | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    launch_id: str
    at_s: float
    tokens: float | None
    vitals: Vitals


class VitalSigns:
    """
    Looks at every worker that serves, every few seconds. `run` is the only writer.

    Whatever a worker answers, nothing but its own figures suffers.
    """

    def __init__(self, scraper: Scraper, log: EventLog) -> None:
        self._scraper = scraper
        self._log = log
        self._looks: dict[str, _Look] = {}

    def of(self, worker: str, launch_id: str) -> Vitals:
        """What the last look at this launch showed."""
        look = self._looks.get(worker)
        return look.vitals if look is not None and look.launch_id == launch_id else Vitals()

    async def run(self, workers: Callable[[], Sequence[WorkerView]]) -> None:
        """Until cancelled."""
        while True:
            everyone = workers()
            serving = [view for view in everyone if view.state in (WorkerState.READY, WorkerState.DRAINING)]
            async with anyio.create_task_group() as group:
                for view in serving:
                    group.start_soon(self._look, view)
            names = {view.name for view in serving}
            self._looks = {name: look for name, look in self._looks.items() if name in names}
            self._scraper.forget_all_but({view.name for view in everyone})
            await anyio.sleep(INTERVAL_S)

    async def _look(self, worker: WorkerView) -> None:
        try:
            self._note(worker, await self._scraper.page(worker))
        except ScrapeError:
            self._looks.pop(worker.name, None)
        except Exception as exc:  # a defect here is no reason to end the supervisor, whose task this is
            self._looks.pop(worker.name, None)
            self._log.event("vitals_failed", level="error", worker=worker.name, detail=repr(exc))

    def _note(self, worker: WorkerView, page: Page) -> None:
        text = page.text.decode("utf-8", "replace")
        tokens = total(text, TOKENS)
        before = self._looks.get(worker.name)
        rate = None
        same = before is not None and before.launch_id == worker.launch_id and page.at_s > before.at_s
        if same and before is not None and None not in (tokens, before.tokens):
            rate = _rate(before.tokens or 0.0, tokens or 0.0, page.at_s - before.at_s)
        usage = next((found for name in KV_USAGE if (found := highest(text, name)) is not None), None)
        self._looks[worker.name] = _Look(worker.launch_id, page.at_s, tokens, Vitals(rate, usage))


def _rate(before: float, now: float, seconds: float) -> float | None:
    """None when the counter fell: the worker behind the address is another one."""
    return (now - before) / seconds if now >= before else None


def total(text: str, name: str) -> float | None:
    """The sum of all series of a metric in Prometheus text; None without any."""
    values = _values(text, name)
    return sum(values) if values else None


def highest(text: str, name: str) -> float | None:
    """The highest series of a metric; None without any."""
    return max(_values(text, name), default=None)


def _values(text: str, name: str) -> list[float]:
    """Of all series of a metric. By searching: a page has thousands of lines, and there may be hundreds of workers."""
    values = []
    page, mark = "\n" + text, "\n" + name
    at = page.find(mark)
    while at >= 0:
        end = page.find("\n", at + 1)
        line = page[at + 1 : end if end >= 0 else len(page)]
        if line[len(name) : len(name) + 1] in ("{", " "):
            try:
                value = float(line.rsplit(" ", 1)[1])
            except ValueError:
                return []  # not Prometheus text: nothing can be said
            if math.isfinite(value):
                values.append(value)
        at = page.find(mark, at + 1)
    return values
