"""
The README's picture of a load-test report: `python -m tests.loadtest.report.picture docs/images/loadtest-report.png`.

A real run against the simulator, whose load rises past what it can take. An excerpt: tables and half of the timeline
are hidden, so that the picture shows one of everything.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from PIL import Image

from tests.browser import chromium, page_of
from tests.e2e.served import free_port, wait_until

WIDTH, HEIGHT = 1180, 2530
HIDDEN = (
    "nav, .scroll, section > p, #thresholds, [data-chart=time-tokens], [data-chart=time-cache], [data-chart=time-lag]"
)
COLOURS = 256
"""A palette is plenty for a page of flat colours, and a third of the size."""

SIMULATOR = (
    *("--model", "simulated", "--served-model-name", "demo", "--sim-start-s", "0", "--sim-no-engine-process"),
    *("--sim-itl-ms", "24", "--sim-itl-ms-per-seq", "0.7", "--sim-prefill-ms-per-token", "0.5"),
    *("--max-num-seqs", "14", "--max-num-queued-reqs", "40"),
    "--enable-prompt-tokens-details",
)
LOAD = (
    *("chat", "--arrivals", "steps:2,4,6,9,5,3", "--duration", "60s", "--drain", "30s", "--max-failures", "100"),
    *("--option", "output_tokens=48", "--slo", "ttft_p95=2s"),
)


def _served(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False


def main(file: Path) -> None:
    """Write the picture."""
    port = free_port()
    target = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "loadtest.servers.simulator", "--port", str(port), *SIMULATOR]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(command, stdout=subprocess.DEVNULL) as simulator:
        try:
            wait_until(lambda: _served(port), within_s=30, what="the simulator ready")
            load = [sys.executable, "-m", "loadtest", *LOAD, "--target", target, "--results", folder]
            subprocess.run(load, check=False)  # missed thresholds are part of the picture
        finally:
            simulator.kill()
        report = next(Path(folder).glob("*/report.html"))
        with chromium() as browser, page_of(browser, width=WIDTH) as (page, _):
            page.goto(report.as_uri())
            page.add_style_tag(
                content=f"{HIDDEN} {{ display: none !important; }} h2 {{ margin: 22px 0 8px !important; }}"
            )
            page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            page.wait_for_timeout(500)
            file.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(file))
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(COLOURS, kmeans=4).save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
