"""
Do scrapes delay tokens? Paced streams with and without a Prometheus that asks for everything every second.

A fleet of eight models, so that there is something to render. In each round the streams run once undisturbed and once
while `/metrics` and both workers' own pages are fetched every second. What counts is the delay (received minus sent) of
one event in a thousand. Sends traffic to 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from loadtest.bench import targets
from loadtest.bench.processes import DIRECT, free_ports, running, wait_answering

MODELS = 8
STREAMS = 32
REQUESTS = 128
EVERY_S = 1.0
LIMIT_MS = 2.0


def configured(folder: Path, port: int, admin_port: int, upstreams: Sequence[int]) -> list[str]:
    """Our gateway over the scripted workers: the measured model and seven that are only there."""
    workers = [{"url": f"http://127.0.0.1:{upstream}"} for upstream in upstreams]
    names = [targets.MODEL, *(f"model-{number}" for number in range(1, MODELS))]
    config = {
        "listen": {"port": port},
        "admin": {"port": admin_port},
        # The scripted workers serve one name; the other models' are never READY, and have all their series.
        "models": {name: {"workers": workers} for name in names},
    }
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    return [sys.executable, "-m", "gateway", "up", "-c", str(file)]


@contextmanager
def scraped(admin_port: int, workers: int) -> Iterator[list[int]]:
    """Fetches everything a Prometheus would, every second; the sizes of the answers."""
    paths = ("metrics", *(f"workers/{targets.MODEL}-static-{index}/metrics" for index in range(workers)))
    sizes: list[int] = []
    enough = threading.Event()

    def scrape() -> None:
        while not enough.wait(EVERY_S):
            for path in paths:
                with DIRECT.open(f"http://127.0.0.1:{admin_port}/{path}", timeout=10) as answer:
                    sizes.append(len(answer.read()))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield sizes
    finally:
        enough.set()
        thread.join()


def stream_lags(port: int) -> dict[str, Any]:
    """The delays of one run of the streams; ends the program when tokens were lost."""
    load = [sys.executable, "-m", "loadtest.bench.relay_client", str(port), "stream"]
    options = ["--concurrency", str(STREAMS), "--requests", str(REQUESTS)]
    result: dict[str, Any] = json.loads(subprocess.check_output([*load, *options]))
    if result["errors"]:
        sys.exit("tokens were lost or garbled: the figures are void")
    return result


def main() -> None:
    """Command line of `make bench`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    alone: list[float] = []
    beside: list[float] = []
    with tempfile.TemporaryDirectory(prefix="scrape-delay-") as name, ExitStack() as stack:
        folder = Path(name)
        port, admin_port, *upstreams = free_ports(4)
        for upstream in upstreams:
            worker = [sys.executable, "-m", "loadtest.bench.paced_upstream", str(upstream)]
            stack.enter_context(running(worker, folder / f"upstream-{upstream}.log"))
            wait_answering(upstream, "the scripted worker", within_s=15)
        stack.enter_context(running(configured(folder, port, admin_port, upstreams), folder / "gateway.log"))
        wait_answering(port, "vllm-gateway", within_s=60, log=folder / "gateway.log")
        for number in range(options.rounds):
            alone.append(stream_lags(port)["lag_p999_ms"])
            with scraped(admin_port, len(upstreams)) as sizes:
                beside.append(stream_lags(port)["lag_p999_ms"])
            print(
                f"round {number + 1}/{options.rounds}: p99.9 delay {alone[-1]:.2f} ms alone, {beside[-1]:.2f} ms "
                f"beside {len(sizes)} scrapes of up to {max(sizes) // 1024} KiB"
            )
    added = statistics.median(b - a for a, b in zip(alone, beside, strict=True))
    verdict = "passed" if added <= LIMIT_MS else "FAILED"
    print(f"a scrape every second adds {added:.2f} ms to the p99.9 event delay (bar {LIMIT_MS:g} ms): {verdict}")


if __name__ == "__main__":
    main()
