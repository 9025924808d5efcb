"""The report in a real browser: silent, self-contained, readable, and it answers the pointer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from loadtest.ledger import Ledger
from loadtest.report.html import report_html
from loadtest.result import RunResult
from tests.browser import chromium, overflow, page_of, unreadable
from tests.loadtest.report.invented import INVALID, invented_run

pytestmark = pytest.mark.integration

DRAWN = "[...document.querySelectorAll('.plot svg')].every((svg) => svg.childElementCount)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_html(invented_run()), encoding="utf-8")
    return file


@contextmanager
def opened(browser: Browser, file: Path, width: int = 1280, scheme: str = "light") -> Iterator[Page]:
    """A file in the browser, all charts drawn; in the end it must have complained of nothing and fetched nothing."""
    with page_of(browser, width=width, scheme=scheme) as (page, wrong):
        fetched: list[str] = []
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_function(DRAWN)
        yield page
    assert [] == wrong
    assert [file.as_uri()] == [url for url in fetched if not url.startswith("data:")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_silent_fits_and_can_be_read(browser: Browser, report: Path, width: int, scheme: str) -> None:
    """Nothing on the console, nothing fetched, no sideways scrolling, text of 12 pixels with a contrast of 4.5."""
    with opened(browser, report, width, scheme) as page:
        assert 0 == overflow(page)
        assert [] == unreadable(page)
        assert page.locator("svg text").count() > 100


def test_every_chart_is_drawn_and_every_view_can_be_chosen(browser: Browser, report: Path) -> None:
    """Each view of each chart has axes and something on them."""
    with opened(browser, report) as page:
        figures = page.locator("figure")
        for figure in figures.all():
            for button in figure.locator(".views button").all() or [None]:
                if button is not None:
                    button.click()
                    assert "true" == button.get_attribute("aria-pressed")
                assert figure.locator("svg text").count() >= 4
                assert figure.locator("svg g[clip-path] > *").count() >= 1
        names = figures.evaluate_all("all => all.map((figure) => figure.dataset.chart)")

    assert names == [
        *("latency-ttft", "latency-gaps", "latency-tpot", "latency-e2e"),
        *("time-rate", "time-in-flight", "time-ttft", "time-tokens", "time-cache", "time-lag"),
        *("gaps-heat", "load-tokens", "load-ttft"),
    ]


def test_pointing_shows_values_and_the_same_moment_everywhere(browser: Browser, report: Path) -> None:
    """The tip has the figures; the other charts of the timeline show the same moment; leaving clears it all."""
    with opened(browser, report) as page:
        page.locator("figure[data-chart=time-tokens] .plot").hover()
        tip = page.locator("figure[data-chart=time-tokens] .tip")
        assert "output tokens" in tip.inner_text()
        assert 6 == page.locator("svg .cross").count()
        page.locator("figure[data-chart=gaps-heat] .plot").hover()
        assert tip.is_hidden()
        assert "p50" in page.locator("figure[data-chart=gaps-heat] .tip").inner_text()
        assert 1 == page.locator("svg .cross").count()
        page.locator("h1").hover()
        assert 0 == page.locator("svg .cross").count()


def test_series_can_be_hidden_and_the_theme_switched(browser: Browser, report: Path) -> None:
    """By buttons, so that a keyboard does it too."""
    with opened(browser, report) as page:
        figure = page.locator("figure[data-chart=time-rate]")
        before = figure.locator("path.line").count()
        figure.locator(".legend button").first.press("Enter")
        page.locator("#theme").press("Enter")

        assert before - 1 == figure.locator("path.line").count()
        assert "dark" == page.evaluate("document.documentElement.dataset.theme")


@pytest.mark.parametrize("case", ["empty", "invalid", "compared", "without the raw log", "not streamed", "hostile"])
def test_odd_runs_make_a_sound_page_too(browser: Browser, tmp_path: Path, case: str) -> None:
    """Nothing sent, a client that was too slow, two runs, no records, no streams, texts that want to be HTML."""
    run, other = invented_run(seconds=10), None
    if case == "empty":
        run = RunResult({}, Ledger(), [], [], INVALID, (0.0, 1.0))
    elif case == "invalid":
        run = invented_run(seconds=10, health=INVALID, failures=False)
    elif case == "compared":
        other = invented_run(seconds=10, seed=2, slower=1.5)
    elif case == "without the raw log":
        run = RunResult.from_json(run.to_json())
    elif case == "not streamed":
        whole = {"first_token_s": None, "first_visible_s": None, "last_token_s": None, "gaps_s": (), "token_events": 0}
        records = [dataclasses.replace(record, **whole, output_tokens=None) for record in run.ledger.records]
        run.ledger = Ledger.of(records)
    else:
        run.settings["model"] = (
            "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>" + "m" * 200
        )
    file = tmp_path / "report.html"
    file.write_text(report_html(run, other), encoding="utf-8")
    with opened(browser, file, 390) as page:
        assert 0 == overflow(page)
        assert [] == unreadable(page)
        assert page.evaluate("window.hit") is None
