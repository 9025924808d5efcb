"""`gateway reload` against a running gateway: only the difference is applied, and what fails goes back."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.fleet_file import READY_S, SIMULATOR, FleetFile, document, model
from tests.e2e.served import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetFile]:
    found = FleetFile(tmp_path, document())
    with found.served:
        found.wait_states(m_0="ready", m_1="ready")
        found.served.wait_ready(within_s=READY_S)
        yield found


def pids(fleet: FleetFile) -> dict[str, int]:
    return {name: worker["pid"] for name, worker in fleet.workers().items()}


def test_time_outs_and_limits_restart_no_worker_and_cut_no_stream(fleet: FleetFile) -> None:
    """A stream begun under the old settings ends as it would have; new connections meet the new settings; a second
    reload finds nothing to do."""
    workers, process = pids(fleet), fleet.gateway_pid()
    text: list[bytes] = []
    streaming = threading.Event()

    def stream() -> None:
        body = {"model": "m", "prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with fleet.served.http.stream("POST", f"{fleet.served.base}/v1/completions", json=body) as answer:
            for chunk in answer.iter_raw():
                text.append(chunk)
                streaming.set()

    client = threading.Thread(target=stream)
    client.start()
    assert streaming.wait(30)
    fleet.write(
        document(limits={"max_body_bytes": 1024}, models={"m": model(aliases=["also"], timeouts={"idle_s": 9})})
    )
    done = fleet.gateway("reload")
    large, alias = (
        httpx.post(
            f"{fleet.served.base}/v1/completions",
            json={"model": name, "prompt": prompt, "max_tokens": 1},
            trust_env=False,
            timeout=60,
        )
        for name, prompt in (("m", "x" * 2000), ("also", "x"))
    )
    client.join(60)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "limits.max_body_bytes" in done.stdout
    assert workers == pids(fleet)
    assert process != fleet.gateway_pid()
    assert (413, 200) == (large.status_code, alias.status_code)
    assert b"".join(text).endswith(b"data: [DONE]\n\n")
    assert b'"finish_reason":"length"' in b"".join(text)
    assert "no difference" in fleet.gateway("reload").stdout


def test_a_reload_fails_no_request(fleet: FleetFile) -> None:
    """Clients that open a connection for every request, and clients that keep theirs, ask all the time through three
    reloads: every request is answered with 200."""
    over = threading.Event()
    answers: list[int] = []
    failures: list[str] = []

    def ask(kept: int) -> None:
        limits = httpx.Limits(max_keepalive_connections=kept)
        with httpx.Client(trust_env=False, timeout=30, limits=limits) as client:
            while not over.is_set():
                body = {"model": "m", "prompt": "x", "max_tokens": 2}
                try:
                    answer = client.post(f"{fleet.served.base}/v1/completions", json=body)
                except httpx.HTTPError as exc:
                    failures.append(repr(exc))
                    continue
                answers.append(answer.status_code)
                if answer.status_code != 200:
                    failures.append(answer.text)

    clients = [threading.Thread(target=ask, args=(kept,)) for kept in (0, 0, 1)]
    for client in clients:
        client.start()
    processes = {fleet.gateway_pid()}
    for retries in (0, 1, 3):
        fleet.write(document(models={"m": model(retries=retries)}))
        assert 0 == fleet.gateway("reload").returncode
        processes.add(fleet.gateway_pid())
    over.set()
    for client in clients:
        client.join(60)

    assert [] == failures
    assert 4 == len(processes)
    assert len(answers) > 3


def test_a_dry_run_shows_and_does_nothing(fleet: FleetFile) -> None:
    workers, process = pids(fleet), fleet.gateway_pid()
    fleet.write(document(models={"m": model(launch={"max_model_len": 999})}))
    done = fleet.gateway("reload", "--dry-run")

    assert 0 == done.returncode
    assert "models.m.launch.max_model_len" in done.stdout
    assert "one by one" in done.stdout
    assert (workers, process) == (pids(fleet), fleet.gateway_pid())


def test_an_address_cannot_change(fleet: FleetFile) -> None:
    """Refused with a sentence, exit code 2, and nothing of the rest applied either."""
    workers, process = pids(fleet), fleet.gateway_pid()
    fleet.write(document(admin={"host": "127.0.0.2"}, models={"m": model(retries=0)}))
    done = fleet.gateway("reload")

    assert 2 == done.returncode
    assert "admin.host cannot change while the gateway runs" in done.stderr
    assert (workers, process) == (pids(fleet), fleet.gateway_pid())


def test_a_wrong_file_changes_nothing_and_says_where(fleet: FleetFile) -> None:
    fleet.path.write_text("models:\n  m:\n    model: simulated\n    replicas: many\n")
    done = fleet.gateway("reload")

    assert 2 == done.returncode
    assert "fleet.yaml:4: models.m.replicas" in done.stderr


def test_replicas_and_models_come_and_go(fleet: FleetFile) -> None:
    """Workers that are in both keep their processes."""
    before = pids(fleet)
    fleet.write(document(models={"m": model(replicas=1), "n": model(replicas=1)}))
    done = fleet.gateway("reload")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert ["m-0", "n-0"] == list(fleet.workers())
    assert before["m-0"] == pids(fleet)["m-0"]
    models = fleet.served.http.get(f"{fleet.served.base}/v1/models").json()["data"]
    assert ["m", "n"] == [each["id"] for each in models]
    answer = fleet.served.http.post(f"{fleet.served.base}/v1/completions", json={"model": "n", "prompt": "x"})
    assert 200 == answer.status_code


def test_an_engine_that_does_not_start_goes_back_to_the_old_one(fleet: FleetFile) -> None:
    """The model names another engine: the first worker tries it, fails, and runs with the old one again; the second is
    never touched. The good engine then rolls through."""
    before = pids(fleet)
    engines = {
        "default": {"command": SIMULATOR},
        "broken": {"command": [*SIMULATOR, "--sim-fail-start", "bad-flag"]},
        "good": {"command": [*SIMULATOR, "--sim-itl-ms", "4"]},
    }
    fleet.write(document(engines=engines, models={"m": model(engine="broken")}))
    failed = fleet.gateway("reload")
    after = pids(fleet)
    states = {worker["state"] for worker in fleet.workers().values()}
    fleet.write(document(engines=engines, models={"m": model(engine="good")}))
    rolled = fleet.gateway("reload")

    assert 1 == failed.returncode
    assert "m-0: does not start with the new options" in failed.stdout
    assert "m-0: ready with the old options again" in failed.stdout
    assert "not touched: m-1" in failed.stdout
    assert {"ready"} == states
    assert (before["m-1"], True) == (after["m-1"], before["m-0"] != after["m-0"])
    assert 0 == rolled.returncode, rolled.stdout + rolled.stderr
    assert set(after.values()).isdisjoint(pids(fleet).values())


def test_sighup_reloads(fleet: FleetFile) -> None:
    process = fleet.gateway_pid()
    fleet.write(document(models={"m": model(retries=0)}))
    fleet.served.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: process != fleet.gateway_pid() and "reload: done" in fleet.served.output,
        within_s=READY_S,
        what="the reload done",
        context=lambda: fleet.served.output,
    )

    assert fleet.served.process.poll() is None


def test_gateway_processes_are_replaced_on_request_and_nothing_else_is(fleet: FleetFile) -> None:
    """`gateway reload --processes` twice, with another number of processes between: each time all of them are new, a
    stream that runs is whole, no worker is touched, and the status shows every process."""
    workers, before = pids(fleet), fleet.gateway_pids()
    streaming = threading.Event()
    text: list[bytes] = []

    def stream() -> None:
        body = {"model": "m", "prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with httpx.stream(
            "POST", f"{fleet.served.base}/v1/completions", json=body, trust_env=False, timeout=60
        ) as answer:
            for chunk in answer.iter_raw():
                text.append(chunk)
                streaming.set()

    client = threading.Thread(target=stream)
    client.start()
    assert streaming.wait(30)
    replaced = fleet.gateway("reload", "--processes")
    between = fleet.gateway_pids()
    fleet.write(document(processes=2))
    reloaded = fleet.gateway("reload")
    fleet.path.write_text("models: [")  # which nobody reads now
    again = fleet.gateway("reload", "--processes")
    after = fleet.gateway_pids()
    shown = fleet.gateway("status").stdout
    client.join(60)

    for done in (replaced, reloaded, again):
        assert 0 == done.returncode, done.stdout + done.stderr
    assert [1, 1, 2] == [len(each) for each in (before, between, after)]
    assert set(before).isdisjoint(between)
    assert set(between).isdisjoint(after)
    assert workers == pids(fleet)
    assert b"".join(text).endswith(b"data: [DONE]\n\n")
    assert "gateway processes 2 of 2" in shown
    for pid in after:
        assert re.search(rf"^\d +serving .* {pid} ", shown, re.MULTILINE), shown
