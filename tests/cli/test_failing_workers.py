"""Workers that misbehave, one model each behind one gateway: each ends in the right state with the right sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cli.fleet_file import READY_S, FleetFile, document, model
from tests.e2e.served import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GIVEN_UP = "`gateway workers start {}` tries again"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetFile]:
    folder = tmp_path_factory.mktemp("failing")

    taken = ("--sim-fail-start", "port-in-use", "--sim-fail-times", "2", "--sim-counter", str(folder / "starts"))
    found = FleetFile(
        folder,
        document(
            models={
                "good": model(replicas=1),
                "hangs": model("--sim-fail-start", "hang", replicas=1, launch={"start_timeout_s": 2}),
                "crashes": model("--sim-fail-start", "cuda-oom", replicas=1, start_s=0.2),
                "leaves": model("--sim-exit-code-after", "0:0.3", replicas=1, start_s=0.2),
                "deaf": model("--sim-ignore-term", replicas=1),
                "ports": model(*taken, replicas=1),
            }
        ),
    )
    with found.served:
        found.wait_states(good_0="ready")
        yield found


def test_one_that_never_becomes_ready_is_given_up(fleet: FleetFile) -> None:
    fleet.wait_states(hangs_0="failed", within_s=120)
    failure = fleet.workers()["hangs-0"]["last_failure"]

    assert "start_timeout_s" in failure
    assert GIVEN_UP.format("hangs-0") in failure


def test_one_that_crashes_at_every_start_is_given_up_after_five(fleet: FleetFile) -> None:
    """Four restarts after the first start, and the sentence names the key to change."""
    fleet.wait_states(crashes_0="failed", within_s=120)
    worker = fleet.workers()["crashes-0"]

    assert 4 == worker["restarts"]
    assert "Given up after 5 failures in a row" in worker["last_failure"]
    assert "gpu_memory_utilization" in worker["last_failure"]


def test_an_exit_that_nobody_asked_for_is_a_crash_whatever_its_code(fleet: FleetFile) -> None:
    """Exit code 0 is how vLLM ends when its engine dies."""
    fleet.wait_states(leaves_0="failed", within_s=120)
    worker = fleet.workers()["leaves-0"]

    assert 4 == worker["restarts"]
    assert re.search(r"exit(ed)?\b.*\b0\b", worker["last_failure"]), worker["last_failure"]


def test_a_port_that_was_taken_costs_a_start_and_no_more(fleet: FleetFile) -> None:
    fleet.wait_states(ports_0="ready", within_s=120)
    worker = fleet.workers()["ports-0"]

    assert {"port_in_use": 2} == worker["restart_reasons"]


def test_a_drain_that_hangs_is_ended_by_force(fleet: FleetFile) -> None:
    """SIGTERM does nothing: stopped all the same, and nobody else is bothered."""
    fleet.wait_states(deaf_0="ready")
    assert 0 == fleet.gateway("workers", "stop", "deaf-0").returncode
    fleet.wait_states(deaf_0="stopped", within_s=60)

    assert fleet.workers()["deaf-0"]["pid"] is None
    assert "ready" == fleet.workers()["good-0"]["state"]


def test_status_tells_all_of_it_within_a_hundred_columns(fleet: FleetFile) -> None:
    """Each failure in words, restarts by reason, and no line of the table wider than a hundred columns."""
    fleet.wait_states(crashes_0="failed", hangs_0="failed", leaves_0="failed", within_s=120)
    wait_until(
        lambda: fleet.workers()["good-0"]["kv_usage"] is not None, within_s=READY_S, what="a look at the metrics"
    )
    text = fleet.gateway("status").stdout
    wide = fleet.gateway("status", "--wide").stdout

    assert max(map(len, text.splitlines())) <= 100
    for word in ("WORKER", "STATE", "AGE", "GPU", "PORT", "PID", "REQS", "TOK/S", "KV", "RESTARTS"):
        assert word in text
    assert re.search(r"ports-0: restarted 2 times \(port_in_use 2\)", text)
    assert "crashes-0: restarted 4 times" in text
    assert "Given up after 5 failures" in " ".join(text.split())
    assert "ADDRESS" in wide
    assert "LOG" in wide
