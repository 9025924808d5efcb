"""Models whose names are text of every kind, on their way through console, metrics and discovery of a real gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from prometheus_client.parser import text_string_to_metric_families

from tests.browser import chromium, overflow, page_of, unreadable
from tests.cli.fleet_file import SIMULATOR, model
from tests.e2e.served import Served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ODD = "org/we\"ird \\n <img src=x onerror=alert(1)>'ü" + "x" * 150
LIKE_ALL = "all models"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway over two models with such names."""
    folder = tmp_path_factory.mktemp("odd")
    file = folder / "fleet.json"
    models = {name: model(replicas=1, start_s=0.1) for name in (ODD, LIKE_ALL)}
    file.write_text(json.dumps({"models": models, "engines": {"default": {"command": SIMULATOR}}}))
    with Served(["-c", str(file)], folder / "state") as served:
        served.wait_ready(within_s=60)
        yield served


def test_every_name_comes_out_of_metrics_and_discovery_as_it_went_in(served: Served) -> None:
    """And every target of the discovery has metrics where it says."""
    body = {"model": ODD, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    assert 200 == served.http.post(f"{served.base}/v1/chat/completions", json=body).status_code
    text = served.http.get(f"{served.admin}/metrics").text
    models = {
        sample.labels["model"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "model" in sample.labels
    }
    targets = served.http.get(f"{served.admin}/discovery").json()

    assert {ODD, LIKE_ALL, "other"} >= models >= {ODD, LIKE_ALL}
    assert [ODD, LIKE_ALL] == [target["labels"]["model"] for target in targets]
    for target in targets:
        path = target["labels"]["__metrics_path__"]
        assert 200 == served.http.get(f"http://{target['targets'][0]}{path}").status_code


def test_the_console_shows_names_as_text_and_asks_the_model_that_was_chosen(served: Served) -> None:
    """No markup of a name is interpreted, none is wider than a telephone, and the choice of all is no model's name."""
    with chromium() as browser, page_of(browser, width=390) as (page, wrong):
        page.goto(f"{served.admin}/console")
        expect(page.locator(".worker.good")).to_have_count(2)
        expect(page.locator(".worker .facts").first).to_contain_text(ODD)
        asked: list[str] = []
        page.on("request", lambda each: asked.append(each.post_data or "") if each.url.endswith("/chat") else None)
        for index, name in enumerate((ODD, LIKE_ALL), 1):
            page.select_option("#model", index=index)
            page.fill("#question", "What is the capital of France?")
            page.click("#send")
            expect(page.locator("#timing")).to_contain_text(f"{name}: first token after")

        assert [ODD, LIKE_ALL] == [json.loads(text)["model"] for text in asked]
        assert 0 == page.locator("img").count()
        assert [] == wrong
        assert [] == unreadable(page)
        assert 0 == overflow(page)
