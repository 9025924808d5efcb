"""
The README's picture of the console: `make pictures` runs `python -m tests.control.web.picture FILE`.

The demo under uneven traffic for a minute and a half, with one worker killed on the way and a question in the chat box.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import expect

from tests.browser import chromium, page_of
from tests.e2e.served import Served

DEMO = Path(__file__).parents[3] / "deploy/examples/demo.yaml"
SECONDS = 90.0
CLIENTS = 6


def _client(served: Served, number: int, until_s: float) -> None:
    source = random.Random(number)
    pause = threading.Event()
    while time.monotonic() < until_s:
        body = {"model": "demo", "stream": True, "max_tokens": source.randint(20, 400)}
        body["messages"] = [{"role": "user", "content": f"Tell me story {source.random()}"}]
        served.http.post(f"{served.base}/v1/chat/completions", json=body)
        pause.wait(source.random() * 2)


def main(file: Path) -> None:
    """Write the picture."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Served(["-c", str(DEMO)], Path(folder)) as served,
        ThreadPoolExecutor(CLIENTS) as clients,
        chromium() as browser,
        page_of(browser, width=1280) as (page, _),
    ):
        served.wait_ready(within_s=60)
        until_s = time.monotonic() + SECONDS
        for number in range(CLIENTS):
            clients.submit(_client, served, number, until_s)
        page.goto(f"{served.admin}/console")
        page.wait_for_timeout(SECONDS * 600)
        pid = served.status()["workers"][1]["pid"]
        next(each for each in served.family() if each.pid == pid).kill()
        page.fill("#question", "What is the capital of France?")
        page.click("#send")
        expect(page.locator("#timing")).to_contain_text("first token after", timeout=30_000)
        page.wait_for_timeout(SECONDS * 300)
        file.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(file), full_page=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
