"""`gateway keys` beside a running `gateway up`, both as an operator would start them, over a static worker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.served import Served, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

READY_S = 60
FOLLOWED_S = 30.0
"""The promise is about a second, on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    """URL of a simulated worker that is nobody's child but ours."""
    command = [sys.executable, "-m", "loadtest.servers.simulator", "--model", "m", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--sim-start-s", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        if found := re.search(r"Starting vLLM server on (\S+)", line):
            url = found[1]
        if "Application startup complete" in line:
            break
    drained = threading.Thread(target=process.stdout.read, daemon=True)
    drained.start()
    yield url
    process.terminate()
    process.wait(30)
    drained.join(10)
    process.stdout.close()


@pytest.fixture
def configuration(worker: str, tmp_path: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"models:\n  m:\n    workers:\n      - url: {worker}\n")
    return file


def gateway(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env=served.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def ask(served: Served, secret: str | None = None, model: str = "m") -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    body = {"model": model, "prompt": "hello", "max_tokens": 2}
    return served.http.post(f"{served.base}/v1/completions", json=body, headers=headers)


def rejections(served: Served) -> float:
    text = served.http.get(f"{served.admin}/metrics").text
    (line,) = [
        each
        for each in text.splitlines()
        if each.startswith("gateway_rejections_total{") and 'model="m"' in each and 'reason="tenant_limit"' in each
    ]
    return float(line.rsplit(" ", 1)[1])


def test_keys_come_and_go_while_the_gateway_runs(configuration: Path, tmp_path: Path) -> None:
    """From nobody's gateway to key holders' and back to nobody at all, without a restart, and without a trace of a key
    in anything that was printed, stored, counted or answered."""
    state = tmp_path / "state"
    with Served(["-c", str(configuration)], state) as served:
        served.wait_ready(within_s=READY_S)
        assert 200 == ask(served).status_code

        made = gateway(served, "keys", "create", "acme", "--model", "m", "--max-in-flight", "1")
        secret = made.stdout.strip()
        assert (0, True) == (made.returncode, secret.startswith("sk-")), made.stderr
        assert secret not in made.stderr
        wait_until(lambda: ask(served).status_code == 401, within_s=FOLLOWED_S, what="a request without key refused")
        answered = ask(served, secret)
        unknown = ask(served, "sk-CANARY-unknown")
        assert (200, 401) == (answered.status_code, unknown.status_code)
        assert "m" == served.http.get(f"{served.base}/v1/models", headers={"x-api-key": secret}).json()["data"][0]["id"]
        assert 200 == served.http.get(f"{served.base}/health").status_code

        other = gateway(served, "keys", "create", "another", "--model", "nosuch")
        assert "no model 'nosuch'" in other.stderr
        wait_until(
            lambda: ask(served, other.stdout.strip()).status_code == 404,
            within_s=FOLLOWED_S,
            what="a key without a right to the model",
        )

        body = {"model": "m", "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        key = {"authorization": f"Bearer {secret}"}
        with served.http.stream("POST", f"{served.base}/v1/completions", json=body, headers=key) as stream:
            chunks = stream.iter_raw()  # kept: with its end the connection would be closed
            next(chunks)
            busy = ask(served, secret)
        assert (429, "1") == (busy.status_code, busy.headers["retry-after"])
        assert ("requests", "rate_limit_exceeded") == (busy.json()["error"]["type"], busy.json()["error"]["code"])
        wait_until(lambda: ask(served, secret).status_code == 200, within_s=FOLLOWED_S, what="the slot back")
        wait_until(lambda: rejections(served) >= 1, within_s=FOLLOWED_S, what="the rejection counted")

        listed = gateway(served, "keys", "list", "--json").stdout
        assert ["acme", "another"] == [entry["name"] for entry in json.loads(listed)]
        assert 0 == gateway(served, "keys", "revoke", "another").returncode
        revoked = gateway(served, "keys", "revoke", "acme")
        assert "every request is refused" in revoked.stdout
        wait_until(lambda: ask(served, secret).status_code == 401, within_s=FOLLOWED_S, what="the revoked key refused")
        assert 401 == ask(served).status_code

        said = "".join(
            [
                *(served.output, listed, revoked.stdout, gateway(served, "keys", "list").stdout),
                *(served.http.get(f"{served.admin}/{page}").text for page in ("metrics", "status")),
                *(file.read_text(errors="replace") for file in state.rglob("*") if file.is_file()),
                *(answer.text + repr(answer.headers) for answer in (answered, unknown, busy)),
            ]
        )
    assert '"tenant":"acme"' in said
    assert secret not in said
    assert secret.removeprefix("sk-")[:12] not in said
    assert "CANARY" not in said


def test_a_damaged_file_keeps_the_running_gateway_as_it_is(configuration: Path, tmp_path: Path) -> None:
    """Key holders go on, others stay out, the log says what is wrong; nothing starts over it, nothing overwrites it."""
    state = tmp_path / "state"
    with Served(["-c", str(configuration)], state) as served:
        secret = gateway(served, "keys", "create", "acme").stdout.strip()
        served.wait_ready(within_s=READY_S)
        wait_until(lambda: ask(served).status_code == 401, within_s=FOLLOWED_S, what="a request without key refused")
        file = state / "keys.json"
        good = file.read_bytes()
        file.write_bytes(good[:40])
        wait_until(lambda: "keys_unreadable" in served.output, within_s=FOLLOWED_S, what="the event")

        assert (200, 401) == (ask(served, secret).status_code, ask(served).status_code)
        for command in (["create", "b"], ["list"], ["revoke", "acme"]):
            done = gateway(served, "keys", *command)
            assert 3 == done.returncode
            assert str(file) in done.stderr
            assert "Traceback" not in done.stderr
        assert good[:40] == file.read_bytes()
    with Served(["-c", str(configuration)], state) as second:
        assert 3 == second.ended(within_s=60), second.output
        assert str(file) in second.output


def test_a_public_address_opens_with_a_key_and_not_without(configuration: Path, tmp_path: Path) -> None:
    """Decision 15, with the keys that exist: none, one, and none any more."""
    state = tmp_path / "state"
    # Not recognisably loopback, so it counts as public; yet no network reaches it.
    public = {"GATEWAY_HOST": "127.1"}
    with Served(["-c", str(configuration)], state, environ=public) as refused:
        assert 2 == refused.ended(within_s=60), refused.output
        assert "gateway keys create" in refused.output
        secret = gateway(refused, "keys", "create", "acme").stdout.strip()
    with Served(["-c", str(configuration)], state, environ=public) as served:
        served.wait_ready(within_s=READY_S)
        assert (200, 401) == (ask(served, secret).status_code, ask(served).status_code)
        assert 0 == gateway(served, "keys", "revoke", "acme").returncode
        wait_until(lambda: ask(served, secret).status_code == 401, within_s=FOLLOWED_S, what="the revoked key refused")
    with Served(["-c", str(configuration)], state, environ=public) as refused:
        assert 2 == refused.process.wait(60), refused.output
