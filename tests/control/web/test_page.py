"""The console in a real browser, over the demo's simulated workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import chromium, overflow, page_of, unreadable
from tests.e2e.served import Served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

DEMO = Path(__file__).parents[3] / "deploy/examples/demo.yaml"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway with traffic behind it, one failure included."""
    with Served(["-c", str(DEMO)], tmp_path_factory.mktemp("state")) as served:
        served.wait_ready(within_s=60)
        for _ in range(3):
            served.http.post(f"{served.base}/v1/chat/completions", json=question(stream=True)).raise_for_status()
        served.http.post(f"{served.base}/v1/chat/completions", json={"model": "demo", "messages": "none"})
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def question(*, stream: bool) -> dict[str, object]:
    return {"model": "demo", "messages": [{"role": "user", "content": "Say something"}], "stream": stream}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_readable_and_clean(
    demo: Served, browser: Browser, width: int, scheme: str, tmp_path: Path
) -> None:
    """No error, nothing wider than the window, no text too small or too pale; figures, workers and charts are there."""
    with page_of(browser, width=width, scheme=scheme) as (page, wrong):
        page.goto(f"{demo.admin}/")
        expect(page.locator(".worker.good")).to_have_count(2)
        expect(page.locator(".tile")).to_have_count(8)
        expect(page.locator("#health")).to_have_text("serving")
        expect(page.locator(".chart svg")).to_have_count(4)
        expect(page.locator("#tunnel")).to_contain_text(f"ssh -L {demo.admin_port}:127.0.0.1:{demo.admin_port}")
        page.screenshot(path=str(tmp_path / "console.png"), full_page=True)

        assert [] == unreadable(page)
        assert 0 == overflow(page)
        assert [] == wrong


def test_gpus_show_their_memory(demo: Served, browser: Browser) -> None:
    """As the driver tells it; what a GPU does not tell is left out. Without GPUs there is no such part."""
    data = demo.http.get(f"{demo.admin}/console/data").json()
    silent = {"utilization": None, "temperature_c": None, "power_w": None}
    data["gpus"] = [
        {"index": 0, "uuid": "GPU-0", "name": "NVIDIA H200", "total_bytes": 141 << 30, "used_bytes": 120 << 30}
        | {"utilization": 0.93, "temperature_c": 61.0, "power_w": 640.0},
        {"index": 1, "uuid": "GPU-1", "name": "slice", "total_bytes": 18 << 30, "used_bytes": 9 << 30} | silent,
    ]
    with page_of(browser, width=390) as (page, wrong):
        page.goto(f"{demo.admin}/console")
        expect(page.locator(".worker.good")).to_have_count(2)
        expect(page.locator("#gpu-section")).to_be_hidden()
        page.route("**/console/data*", lambda route: route.fulfill(json=data))
        expect(page.locator("#gpus")).to_contain_text("120 of 141 GiB")
        expect(page.locator("#gpus")).to_contain_text("93 % busy")
        expect(page.locator("#gpus .worker").nth(1)).to_have_text("GPU 1slice9 of 18 GiB")
        assert [] == unreadable(page)
        assert 0 == overflow(page)
        assert [] == wrong


def test_a_gpu_out_of_use_says_why_and_how_it_comes_back(demo: Served, browser: Browser) -> None:
    """Also one whose driver tells nothing any more; the others stay as they are."""
    data = demo.http.get(f"{demo.admin}/console/data").json()
    gpu = {"name": "NVIDIA H200", "total_bytes": 141 << 30, "used_bytes": 70 << 30}
    silent = {"utilization": None, "temperature_c": None, "power_w": None}
    data["gpus"] = [{"index": index, "uuid": f"GPU-{index}"} | gpu | silent for index in (0, 1)]
    data["report"]["quarantined_gpus"] = [
        {"gpu": 1, "reason": "70.0 GiB are in use", "fix": "`gateway gpus return 1`"},
        {"gpu": 2, "reason": "the driver reported Xid 79", "fix": "`gateway gpus return 2`"},
    ]
    with page_of(browser, width=390) as (page, wrong):
        page.route("**/console/data*", lambda route: route.fulfill(json=data))
        page.goto(f"{demo.admin}/console")
        expect(page.locator("#gpus .worker.bad")).to_have_count(2)
        expect(page.locator("#gpus .worker.good")).to_have_text("GPU 0NVIDIA H20070 of 141 GiB")
        expect(page.locator("#gpus .worker.bad").nth(0)).to_have_text(
            "GPU 2Out of use: the driver reported Xid 79; `gateway gpus return 2`."
        )
        expect(page.locator("#gpus .worker.bad").nth(1)).to_contain_text("Out of use: 70.0 GiB are in use;")
        assert [] == unreadable(page)
        assert 0 == overflow(page)
        assert [] == wrong


def test_the_chat_box_streams_an_answer_and_says_how_fast_it_was(demo: Served, browser: Browser) -> None:
    """The request is the gateway's own traffic: it shows in the figures. A failure is shown in words."""
    with page_of(browser, width=1280) as (page, wrong):
        page.goto(f"{demo.admin}/console")
        expect(page.locator("#model")).to_have_value("demo")
        page.fill("#question", "What is the capital of France?")
        page.keyboard.press("Enter")
        expect(page.locator(".said.model")).to_contain_text("Paris")
        expect(page.locator("#timing")).to_contain_text("first token after")
        assert [] == wrong
        assert [] == unreadable(page)

        page.route("**/console/chat", lambda route: route.fulfill(status=503, json={"error": {"message": "no room"}}))
        page.fill("#question", "Again")
        page.click("#send")
        expect(page.locator(".said.error")).to_have_text("no room")
        assert [] == unreadable(page)


def test_a_worker_that_is_killed_shows_its_failure_and_a_gateway_that_is_gone_is_said_so(
    browser: Browser, tmp_path: Path
) -> None:
    """State and words follow what happens; after the end the page says that it is old."""
    with Served(["-c", str(DEMO)], tmp_path / "state") as served, page_of(browser, width=390) as (page, _):
        served.wait_ready(within_s=60)
        page.goto(f"{served.admin}/console")
        expect(page.locator(".worker.good")).not_to_have_count(0)
        expect(page.locator("#failures")).to_contain_text("None in the last ten minutes")
        pid = served.status()["workers"][0]["pid"]
        next(each for each in served.family() if each.pid == pid).kill()
        expect(page.locator("#failures")).to_contain_text(served.status()["workers"][0]["name"])
        served.process.terminate()
        served.process.wait(30)
        expect(page.locator("#offline")).to_contain_text("does not answer")

        assert [] == unreadable(page)
        assert 0 == overflow(page)
