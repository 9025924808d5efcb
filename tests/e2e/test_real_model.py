"""A real vLLM on this machine's CPU behind the product's own command: what README promises under "Serve"."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from openai import OpenAI

from tests.e2e.served import Served, alive, free_port, standing, wait_until
from tests.grafana.live import LivePrometheus, Series
from tests.grafana.observed import load_test
from tests.grafana.reading import Target, every_target
from tests.sdk.real_set import REAL_OPERATIONS, run_real_set

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France?"
START_S = 600
UNFILLED = {
    "engines: External prefix cache hits A",
    "engines: Multi-modal cache hits A",
    *(f"{page}: annotation Worker {what}" for page in ("engines", "loadtest") for what in ("drains", "restarts")),
}
"""What this engine, and a run without restarts, have no data for."""
WATCHED = "count_over_time(up[20s]) or increase(loadtest_requests_total[20s])"


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """The official SDK, retries off so that nothing is papered over."""
    with (
        httpx.Client(trust_env=False, timeout=300) as http,
        OpenAI(base_url=f"{served.base}/v1", api_key="unused", max_retries=0, http_client=http) as sdk,
    ):
        yield sdk


def ask(client: OpenAI, *, stream: bool) -> tuple[str, int]:
    """The model's answer and the completion tokens that usage reports."""
    if not stream:
        whole = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=32
        )
        assert whole.usage is not None
        return whole.choices[0].message.content or "", whole.usage.completion_tokens
    text, tokens = "", 0
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    ):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
    return text, tokens


def test_the_start_ends_with_everything_a_user_needs(served: Served) -> None:
    """URL, curl line, SDK snippet, metrics address, and NO_PROXY because a proxy is set."""
    expected = (f"{served.base}/v1", "curl ", "from openai import OpenAI", f"{served.admin}/metrics", "NO_PROXY")
    wait_until(
        lambda: all(text in served.output for text in expected),
        within_s=30,
        what=f"{expected} in the output",
        context=lambda: served.output,
    )


def test_curl_gets_an_answer_with_paris(served: Served) -> None:
    """The line that README prints, without any SDK in between."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0})
    url = f"{served.base}/v1/chat/completions"
    answer = subprocess.run(
        ["curl", "-sS", "--noproxy", "*", url, "-H", "Content-Type: application/json", "-d", body],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout

    assert "Paris" in answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_worker_generated_exactly_the_tokens_reported_to_the_client(
    served: Served, client: OpenAI, stream: bool
) -> None:
    """Usage is the worker's own truth: its counter rises by it, no more (no hidden retry) and no less."""
    before = standing(lambda: served.worker_metric(f"{MODEL}-0", "vllm:generation_tokens_total"))
    text, tokens = ask(client, stream=stream)

    assert "Paris" in text
    assert tokens > 0
    wait_until(
        lambda: served.worker_metric(f"{MODEL}-0", "vllm:generation_tokens_total") == before + tokens,
        within_s=30,
        what=f"the counter at {before + tokens}",
    )


@pytest.mark.parametrize("sdk", REAL_OPERATIONS)
def test_every_sdk_gets_the_workers_own_answer(served: Served, sdk: str, tmp_path: Path) -> None:
    """Six client SDKs, direct and through the gateway: the same results."""
    (worker,) = served.status()["workers"]
    process = psutil.Process(worker["pid"])
    arguments = process.cmdline()
    direct = f"http://127.0.0.1:{arguments[arguments.index('--port') + 1]}"
    run_real_set(sdk, served.base, direct, process.environ()["VLLM_API_KEY"], MODEL, tmp_path)


def test_the_load_test_prints_its_table_against_the_running_gateway(served: Served, tmp_path: Path) -> None:
    """`make loadtest` on a real model: all requests are accounted for, none failed, and lengths are those asked for."""
    done = subprocess.run(
        [sys.executable, "-m", "loadtest", "--target", served.base, "--users", "2", "--duration", "10"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
    )

    # 4 is INVALID: client and engine share this machine's processors, and nothing is timed here.
    assert done.returncode in (0, 4), done.stdout + done.stderr
    assert "time to first token" in done.stdout.lower()
    assert "failed 0 + unsent 0" in done.stdout
    (log,) = tmp_path.glob("results/*/requests.jsonl")
    requests = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert {64} == {request["output_tokens"] for request in requests}
    assert all(abs(request["prompt_tokens"] - 128) <= 2 for request in requests), "template included"


def test_the_dashboards_are_filled_by_a_real_engine(served: Served, tmp_path: Path) -> None:
    """Every query of the engines' and the load test's page has data, no query of any page fails or gives NaN."""
    metrics_port = free_port()
    targets = {"gateway": [f"127.0.0.1:{served.admin_port}"], "loadtest": [f"127.0.0.1:{metrics_port}"]}
    with (
        # Answers so short that a slow machine's engine, too, ends several within the window of a rate.
        load_test(
            served,
            tmp_path,
            metrics_port,
            "--users",
            "2",
            "--option",
            "prompt_tokens=32",
            "--option",
            "output_tokens=8",
        ) as load,
        LivePrometheus(tmp_path / "prometheus", targets, {"vllm": f"{served.admin}/discovery"}) as prometheus,
    ):
        wait_until(
            lambda: (
                (prometheus.value("sum(increase(loadtest_requests_total[20s]))") or 0) >= 2
                and (prometheus.value("min(count_over_time(up[20s]))") or 0) >= 4
            ),
            within_s=300,
            what="four scrapes of everything, and answers",
            context=lambda: "\n".join(
                [prometheus.said(), load.said(), *map(str, prometheus.answer(Target("", "", WATCHED, True)))]
            ),
        )
        answers: dict[str, list[Series]] = {}

        def unfilled() -> set[str]:
            answers.update((target.name, prometheus.answer(target)) for target in every_target())
            empty = {name for name, series in answers.items() if not any(one.points for one in series)}
            return {name for name in empty if name.startswith(("engines: ", "loadtest: "))}

        # On a busy machine a scrape takes longer than it may now and then, and nothing is there as of now.
        wait_until(
            lambda: unfilled() == UNFILLED,
            within_s=120,
            what="data in every query that has some",
            context=lambda: f"{sorted(unfilled() ^ UNFILLED)}\n{prometheus.said()}",
        )

    values = [value for series in answers.values() for one in series for _, value in one.points]
    assert values
    assert not [value for value in values if math.isnan(value)]


def test_a_killed_api_server_takes_its_engine_along_and_comes_back_by_itself(served: Served) -> None:
    """kill -9 during a request: no orphaned engine process keeps the memory, the worker is READY again unasked,
    and `/v1/models` never fails meanwhile."""
    (worker,) = served.status()["workers"]
    api_server = psutil.Process(worker["pid"])
    tree = [api_server, *api_server.children(recursive=True)]
    assert len(tree) > 1, "vLLM runs its engine in a process of its own"
    in_flight = threading.Event()
    ended = threading.Event()

    def keep_busy() -> None:
        try:
            with served.http.stream(
                "POST",
                f"{served.base}/v1/chat/completions",
                json={
                    "model": MODEL,
                    "messages": [{"role": "user", "content": "Count to one thousand."}],
                    "max_tokens": 1500,
                    "ignore_eos": True,
                    "stream": True,
                },
            ) as answer:
                for _ in answer.iter_raw():
                    in_flight.set()
        except httpx.TransportError:
            in_flight.set()
        finally:
            ended.set()

    requester = threading.Thread(target=keep_busy)
    requester.start()
    assert in_flight.wait(120)
    os.kill(api_server.pid, signal.SIGKILL)

    def replaced() -> bool:
        models = served.http.get(f"{served.base}/v1/models")
        assert models.status_code == 200
        assert [model["id"] for model in models.json()["data"]] == [MODEL]
        (now,) = served.status()["workers"]
        return now["state"] == "ready" and now["pid"] != worker["pid"]

    assert ended.wait(60), "the client of the dead worker was left hanging"
    requester.join()
    wait_until(replaced, within_s=START_S, what="the worker READY again", context=lambda: served.output)
    assert [] == alive(tree)


def test_interrupting_stops_everything_within_30_seconds(served: Served) -> None:
    """Last of all that share the engine: Ctrl-C leaves no process of ours and says so in one line."""
    family = served.family()
    served.process.send_signal(signal.SIGINT)

    assert served.ended(within_s=30) == 0, served.output
    assert [] == alive(family)
    assert "stopped" in served.output.splitlines()[-1].lower()
