"""Every query of every dashboard, asked of a real Prometheus that watches the gateway under traffic."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image

from tests.e2e.served import alive, free_ports, wait_until
from tests.grafana.live import LivePrometheus, Series
from tests.grafana.observed import FIRING, Observed, observed
from tests.grafana.pictures import draw
from tests.grafana.reading import ROOT, Target, dashboards, every_target, panel_targets, variable_queries
from tests.grafana.replay import RELEASES, replaying
from tests.prometheus.promtool import promtool

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

REPLAYED = {
    "engines: External prefix cache hits A": "vllm-0.32-cpu",
    "engines: Multi-modal cache hits A": "vllm-0.32-cpu",
    "gpu: Memory of the workers' API servers A": "vllm-0.32-cpu",
    "gpu: Open files of the workers' API servers A": "vllm-0.32-cpu",
    "gpu: GPUs held by workers A": "gateway",
    "gpu: Who holds them A": "gateway",
    "gpu: Power by worker A": "gateway",
    "routing: Further attempts by reason A": "gateway",
}
"""Queries that simulated workers cannot fill, and whose replayed metrics do: nothing else may be empty."""
AT_MOST_EMPTY = 10
LOOKS = 20
NEW_IN_0_32 = {"engines: Turned away by the engine A", "engines: Preemptions per request A"}

Answers = Mapping[str, list[Series]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """One fleet and one Prometheus for all tests of the module."""
    with observed(tmp_path_factory.mktemp("observed")) as found:
        yield found


@pytest.fixture(scope="module")
def answers(seen: Observed) -> Answers:
    """Of every query, before anything is replayed. A query that Prometheus refuses fails here, with its words."""
    return answers_of(seen.prometheus, every_target(), empty=set(REPLAYED))


@pytest.fixture(scope="module")
def with_replays(seen: Observed, answers: Answers) -> Iterator[LivePrometheus]:
    """The same Prometheus, once the replays have been scraped often enough."""
    with replaying() as targets:
        seen.prometheus.also_scrape(targets)
        wait_until(
            lambda: (seen.prometheus.value('min(count_over_time(up{instance=~"replayed/.*"}[8s]))') or 0) >= 4,
            within_s=120,
            what="four scrapes of the replays",
            context=seen.prometheus.said,
        )
        yield seen.prometheus


def answers_of(
    prometheus: LivePrometheus, targets: Sequence[Target], chosen: Mapping[str, str] | None = None, *, empty: set[str]
) -> Answers:
    """
    All of them. On a busy machine a scrape takes longer than it may now and then, and nothing is there as of now: they
    are asked for again, some times, while those without data are not those in `empty`.
    """
    for _ in range(LOOKS):
        answers = {target.name: prometheus.answer(target, chosen) for target in targets}
        if empty == {name for name, series in answers.items() if not filled(series)}:
            break
    return answers


def filled(series: list[Series]) -> bool:
    """There is something to draw."""
    return any(one.points for one in series)


def test_every_panel_and_marker_has_something_to_show(answers: Answers) -> None:
    """But for those that need a machine which is not here, and they are few and listed."""
    empty = {name for name, series in answers.items() if not filled(series)}

    assert set(REPLAYED) == empty
    assert len(REPLAYED) <= AT_MOST_EMPTY


def test_no_panel_ever_shows_nan(answers: Answers) -> None:
    """Also not for the time before the first request."""
    nan = {name for name, series in answers.items() for one in series for _, value in one.points if math.isnan(value)}

    assert set() == nan


def test_alerts_name_the_worker_and_what_it_does(seen: Observed) -> None:
    """A hung, a stalled, a preempting and a crashing worker, each by name; every template was filled in."""
    firing = [alert for alert in seen.prometheus.alerts() if alert["state"] == "firing"]
    texts = [text for alert in firing for text in alert["annotations"].values()]
    worst = {"GatewayWorkerHung": "hung-0", "GatewayEngineStalled": "hung-0"}
    worst |= {"GatewayPreempting": "tight-0", "GatewayWorkerCrashLoop": "frail-0"}

    for name, worker in worst.items():
        (summary,) = [one["annotations"]["summary"] for one in firing if one["labels"]["alertname"] == name]
        assert summary.startswith(worker)
    assert set(FIRING) == set(worst)
    assert not [text for text in texts if "error expanding" in text or "<no value>" in text or "{{" in text]


def test_every_dashboard_can_be_drawn(answers: Answers, tmp_path: Path) -> None:
    """As `make dashboards-pictures` draws them for the README."""
    for page, dashboard in dashboards().items():
        draw(page, dashboard, answers, tmp_path / f"{page}.png")

    assert sorted(f"{page}.png" for page in dashboards()) == sorted(path.name for path in tmp_path.iterdir())
    assert all(path.stat().st_size < 200_000 for path in tmp_path.iterdir())
    assert [] == [path.name for path in tmp_path.iterdir() if coloured(path) < 2000]


def coloured(picture: Path) -> int:
    """Pixels that are neither paper nor ink: lines, bars and heat."""
    saturations = Image.open(picture).convert("HSV").getchannel("S").histogram()
    return sum(saturations[100:])


def test_idle_is_no_traffic(seen: Observed) -> None:
    """Before the first request rates are zero, shares and quantiles have no sample, and nothing is NaN."""
    values = {name: [one.points[-1][1] for one in series] for name, series in seen.idle.items()}

    assert [] == [name for name, found in values.items() if any(math.isnan(value) for value in found)]
    for tile in ("Availability", "TTFT p95", "ITL p95", "TTFT within target", "ITL within target"):
        assert [] == values[f"overview: {tile} A"], tile
    assert [0.0] == values["overview: Output tokens A"]
    assert [0.0] == values["overview: In flight A"]


def test_every_variable_offers_something(seen: Observed) -> None:
    """With all the choices before it on All."""
    empty = [
        f"{page}: {name}"
        for page, dashboard in dashboards().items()
        for name, selector, label in variable_queries(dashboard)
        if not seen.prometheus.label_values(selector, label)
    ]

    assert [] == empty


def test_what_is_empty_here_is_filled_by_a_replay(with_replays: LivePrometheus) -> None:
    """By metrics recorded from a real vLLM, or rendered as a gateway on a machine with GPUs renders them."""
    targets = [target for target in every_target() if target.name in REPLAYED]

    answers = answers_of(with_replays, targets, empty=set())

    assert [] == [name for name, series in answers.items() if not filled(series)]


@pytest.mark.parametrize("release", RELEASES)
def test_the_engines_page_is_filled_by_old_and_new_vllm(release: str, with_replays: LivePrometheus) -> None:
    """One recorded worker is chosen; two panels say that they need the newer release."""
    targets = list(panel_targets("engines", dashboards()["engines"]))

    expected = NEW_IN_0_32 if release.startswith("0.25") else set()

    answers = answers_of(with_replays, targets, {"worker": f"recorded-{release}"}, empty=expected)

    assert expected == {name for name, series in answers.items() if not filled(series)}


def test_the_gateways_own_metrics_pass_promtool(seen: Observed) -> None:
    """Names, units, help: Prometheus's own linter has nothing to say."""
    text = seen.served.http.get(f"{seen.served.admin}/metrics").raise_for_status().text

    done = promtool("check", "metrics", stdin=text)

    assert (0, "") == (done.returncode, done.stdout)


def test_observe_shows_a_running_gateway_until_it_is_interrupted(seen: Observed, tmp_path: Path) -> None:
    """Its Prometheus scrapes the gateway and every worker; Grafana is started provisioned; Ctrl-C ends both."""
    port, grafana_port = free_ports(2)
    told = tmp_path / "told"
    fake = tmp_path / "bin" / "grafana"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\nprintenv >"{told}.new"; mv "{told}.new" "{told}"; exec sleep 300\n', encoding="utf-8")
    fake.chmod(0o755)
    command = [
        *("env", "--default-signal=INT", sys.executable, "-m", "grafana.observe", "--admin", seen.served.admin),
        *("--prometheus-port", str(port), "--grafana-port", str(grafana_port), "--folder", str(tmp_path / "kept")),
    ]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        family = psutil.Process(process.pid).children(recursive=True)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
            wait_until(
                partial(all_up, http, 1 + 6), within_s=120, what="gateway and six workers up", context=lambda: said
            )
        wait_until(told.exists, within_s=60, what="Grafana started")
        process.send_signal(signal.SIGINT)

        assert 0 == process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        process.stdout.close()
    assert f"http://127.0.0.1:{grafana_port}/dashboards" in said
    assert (
        f"GF_PATHS_PROVISIONING={tmp_path / 'kept' / 'provisioning'}" in told.read_text(encoding="utf-8").splitlines()
    )
    assert [] == alive(family)


def all_up(http: httpx.Client, number: int) -> bool:
    """So many targets that are not the load test answer; those that do not belong to a run are down."""
    answer = http.get("/api/v1/query", params={"query": 'sum(up{job!="loadtest"})'}).json()["data"]["result"]
    return bool(answer and float(answer[0]["value"][1]) == number)
