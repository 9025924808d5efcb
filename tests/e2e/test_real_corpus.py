"""Known failures of relays in the field, tried on the real vLLM: what no scripted worker can vouch for."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.served import Served, wait_until
from tests.proxy.raw_client import post

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MODEL = "SmolLM2-135M-Instruct"
WORKER = f"{MODEL}-0"
LONG = 2000
"""Tokens that take the engine half a minute, and no less than several seconds anywhere."""
EVENT = re.compile(rb"(?::[^\n]*|data: [^\n]+)\n\n")


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_c08_a_prompt_longer_than_the_context_is_the_same_error_streamed_or_not(served: Served, route: str) -> None:
    """Status, type and body: no 200 with an error inside, and the code that agents look for."""
    (worker,) = served.status()["workers"]
    words = "word " * (worker["max_model_len"] + 1)
    prompt = {"prompt": words} if route == "completions" else {"messages": [{"role": "user", "content": words}]}
    whole, stream = (
        served.http.post(f"{served.base}/v1/{route}", json={"model": MODEL, "stream": stream, **prompt})
        for stream in (False, True)
    )

    assert (400, 400) == (whole.status_code, stream.status_code)
    assert whole.headers["content-type"] == stream.headers["content-type"] == "application/json"
    assert whole.json() == stream.json()
    assert "context_length_exceeded" == whole.json()["error"]["code"]


def test_c28_reused_connections_behave_as_new_ones(served: Served) -> None:
    """Five waves of eight requests from four clients, streamed and not by turns: each gets the same answer over the
    one connection of its client."""
    body = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}

    def ask(client: httpx.Client) -> list[tuple[str, Any]]:
        whole = client.post("/v1/completions", json=body).raise_for_status()
        stream = client.post("/v1/completions", json={**body, "stream": True}).raise_for_status()
        events = [json.loads(data) for data in re.findall(r"^data: (\{.*)$", stream.text, re.MULTILINE)]
        texts = (
            whole.json()["choices"][0]["text"],
            "".join(choice["text"] for event in events for choice in event["choices"]),
        )
        addresses = (each.extensions["network_stream"].get_extra_info("client_addr") for each in (whole, stream))
        return list(zip(texts, addresses, strict=True))

    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        kept = httpx.Limits(keepalive_expiry=100)  # httpx would drop a connection that waits for the others 5 s
        clients = [
            stack.enter_context(httpx.Client(base_url=served.base, trust_env=False, timeout=120, limits=kept))
            for _ in range(4)
        ]
        answers = [answer for _ in range(5) for pair in pool.map(ask, clients) for answer in pair]

    texts, addresses = {text for text, _ in answers}, {address for _, address in answers}
    assert 5 * 8 == len(answers)
    assert 1 == len(texts), texts
    assert "Paris" in texts.pop()
    assert len(clients) == len(addresses)


def departures(served: Served, phase: str) -> list[float]:
    """The gateway's own counts: exchanges whose client left, and those of them that were in `phase`."""
    text = served.http.get(f"{served.admin}/metrics").raise_for_status().text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    wanted = (("gateway_requests_total", "outcome", "client_closed"), ("gateway_disconnects_total", "phase", phase))
    return [
        sum(one.value for one in samples if one.name == name and one.labels[label] == value)
        for name, label, value in wanted
    ]


def three_events(client: socket.socket) -> None:
    """Read until so much of the stream has come."""
    received = b""
    while received.count(b"data: ") < 3:
        data = client.recv(65536)
        assert data, received
        received += data


def running(served: Served, count: int) -> None:
    """Wait until the engine has so many requests in hand."""
    wait_until(
        lambda: served.worker_metric(WORKER, "vllm:num_requests_running") == count,
        within_s=60,
        what=f"{count} requests running",
        context=lambda: served.output,
    )


@pytest.mark.parametrize(
    ("stream", "phase"),
    [pytest.param(True, "streaming", id="c35-stream"), pytest.param(False, "headers", id="c36-whole")],
)
def test_c35_c36_the_engine_stops_when_the_client_has_left(served: Served, stream: bool, phase: str) -> None:
    """The engine runs nothing any more, long before it has generated what was asked for, and the gateway knows why."""
    body = {"model": MODEL, "prompt": "Count:", "max_tokens": LONG, "ignore_eos": True, "stream": stream}
    tokens = served.worker_metric(WORKER, "vllm:generation_tokens_total")
    expected = [count + 1 for count in departures(served, phase)]
    with socket.create_connection(("127.0.0.1", served.port), timeout=120) as client:
        client.sendall(post("/v1/completions", body))
        if stream:
            three_events(client)
        running(served, 1)
    wait_until(
        lambda: departures(served, phase) == expected,
        within_s=60,
        what="the departure counted",
        context=lambda: f"{expected}, {departures(served, phase)}\n{served.output}",
    )
    running(served, 0)

    assert tokens + LONG > served.worker_metric(WORKER, "vllm:generation_tokens_total")


@contextmanager
def beating(served: Served, folder: Path) -> Iterator[Served]:
    """Another gateway before the same engine, which sends heartbeats."""
    (worker,) = served.status()["workers"]
    (folder / "key").write_text(psutil.Process(worker["pid"]).environ()["VLLM_API_KEY"], encoding="utf-8")
    static = {"url": f"http://{worker['address']}", "api_key_file": "key"}
    models = {MODEL: {"workers": [static], "sse_heartbeat_s": 0.1}}
    (folder / "fleet.yaml").write_text(json.dumps({"models": models}), encoding="utf-8")  # JSON is YAML
    with Served(["-c", str(folder / "fleet.yaml")], folder / "state") as running:
        running.wait_ready(within_s=60)
        yield running


def test_c13_comments_come_while_a_long_prompt_is_computed(served: Served, tmp_path: Path) -> None:
    """A prompt that fills the context: comments before the first event, none inside one, and nothing is missing.

    The engine is held until the first comment is there, so that a fast one is silent for long enough too.
    """
    (worker,) = served.status()["workers"]
    prompt = [100 + 7 * number for number in range(worker["max_model_len"] - 8)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "ignore_eos": True, "stream": True}
    engine = psutil.Process(worker["pid"]).children(recursive=True)
    received = b""
    with beating(served, tmp_path) as gateway:
        for process in engine:
            process.suspend()
        try:
            with gateway.http.stream("POST", f"{gateway.base}/v1/completions", json=body) as answer:
                for chunk in answer.iter_raw():
                    received += chunk
                    for process in engine:
                        process.resume()
        finally:
            for process in engine:
                process.resume()

    events = EVENT.findall(received)
    assert 200 == answer.status_code
    assert b"".join(events) == received
    assert events[0].startswith(b":"), "the first that came is a comment"
    told = [event[6:] for event in events if event.startswith(b"data: ")]
    assert b"[DONE]\n\n" == told.pop()
    choices = [choice for event in told for choice in json.loads(event)["choices"]]
    assert ["length"] == [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
