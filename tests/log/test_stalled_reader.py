"""Nobody reads the gateway's log: clients must not notice, and the gateway must still end."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.fleet_file import SIMULATOR, model
from tests.e2e.served import Served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

REQUESTS = 200
"""Their lines are more than twice what a pipe holds (64 KiB)."""


class Unread(Served):
    """`gateway up` whose standard error is a pipe that nobody reads until the process has ended."""

    def __enter__(self) -> Unread:
        self.process = subprocess.Popen(
            ["env", "--default-signal=HUP,INT", *self.command],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._read_in_background()
        return self


def test_a_pipe_that_nobody_reads_delays_no_request_and_no_stop(tmp_path: Path) -> None:
    """Several pipes full of request lines: all are answered, none of the lines is lost yet, and the gateway ends."""
    file = tmp_path / "fleet.yaml"
    settings = {
        "models": {"m": model(replicas=1, start_s=0.1)},
        "engines": {"default": {"command": SIMULATOR}},
        "logging": {"format": "json"},
    }
    file.write_text(json.dumps(settings))
    with Unread(["-c", str(file)], tmp_path / "state") as served:
        served.wait_ready(within_s=60)
        long_id = "x" * 128
        for _ in range(REQUESTS):
            answer = served.http.post(
                f"{served.base}/tokenize", json={"model": "m", "prompt": "a"}, headers={"x-request-id": long_id}
            )
            assert 200 == answer.status_code
        samples = served.http.get(f"{served.admin}/metrics").text
        served.process.send_signal(signal.SIGTERM)
        code = served.process.wait(60)
        assert served.process.stderr is not None
        lines = served.process.stderr.read().splitlines()
        served.process.stderr.close()

    assert 0 == code, served.output
    assert "gateway_log_lines_dropped_total 0.0" in samples
    assert 30 < sum(long_id in line for line in lines) < REQUESTS / 2
    assert all(json.loads(line) for line in lines[:-1])
