"""A run with everything around it: live progress, Prometheus endpoint, the server's figures, the verdict."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gevent
from rich.console import Console

from loadtest.health import client_health
from loadtest.locust_run import run_load
from loadtest.merging import MergedRun
from loadtest.plan import RunPlan
from loadtest.report.endpoint import MetricsEndpoint
from loadtest.report.live import LiveProgress
from loadtest.result import RunResult, ServerSample, TimelineSample
from loadtest.run_options import steady_window
from loadtest.server_metrics import PERIOD_S, Source, find_sources, sample_of


def measured_run(
    plan: RunPlan,
    settings: dict[str, Any],
    console: Console,
    *,
    title: str,
    objectives: dict[str, float],
    warmup_s: float | None,
    ceiling: float | None,
    metrics_port: int | None,
    server_metrics: str | None,
) -> RunResult:
    """
    Runs the plan and judges it. `settings` is completed with what only the run can tell; `clock_start_s` is the start
    on the machine's monotonic clock, to lay the records beside other logs of this machine.

    Raises:
        WorkerProcessError: a load process was lost.
        UsageError: the metrics port is taken, or --server-metrics has none.
    """
    logging.getLogger("locust").setLevel(logging.ERROR)  # its advice on spawn rates is not about this
    sources = find_sources(plan.target, plan.context.model, server_metrics)
    settings["server_metrics"] = [str(source) for source in sources]
    run = MergedRun()
    with contextlib.ExitStack() as stack:
        if metrics_port is not None:
            endpoint = stack.enter_context(
                MetricsEndpoint(
                    metrics_port,
                    settings,
                    ledger=lambda: run.ledger,
                    latest=lambda: run.timeline[-1] if run.timeline else None,
                )
            )
            console.print(f"metrics: {endpoint.url}", highlight=False)
        live = stack.enter_context(LiveProgress(console, title, plan.duration_s))
        server = stack.enter_context(_scraped(sources))

        def on_sample(sample: TimelineSample) -> None:
            live.update(sample, run.ledger)

        started = run_load(plan, run, on_sample)
    settings["clock_start_s"] = started
    settings["locust_requests"], settings["locust_failures"] = run.locust_requests, run.locust_failures
    window = steady_window(warmup_s, plan.duration_s, run.timeline[-1].at_s)
    return RunResult(
        settings=settings,
        ledger=run.ledger,
        timeline=run.timeline,
        server=[at_run_time(sample, started) for sample in server],
        health=client_health(run, plan.processes, ceiling, window),
        window=window,
        objectives=objectives,
    )


@contextmanager
def _scraped(sources: Sequence[Source]) -> Iterator[list[ServerSample]]:
    """Samples, read in the background while the block runs. Their times are perf_counter's."""
    samples: list[ServerSample] = []

    def scrape() -> None:
        while True:
            sample = sample_of(sources, time.perf_counter)
            if sample is not None:
                samples.append(sample)
            gevent.sleep(PERIOD_S)

    scraper = gevent.spawn(scrape) if sources else None
    try:
        yield samples
    finally:
        if scraper is not None:
            scraper.kill()


def at_run_time(sample: ServerSample, started: float) -> ServerSample:
    """The sample with its time counted from the start of the run."""
    return ServerSample(
        sample.at_s - started,
        sample.running,
        sample.waiting,
        sample.kv_cache_usage,
        sample.preemptions,
        sample.prefix_hits,
        sample.prefix_queries,
    )
