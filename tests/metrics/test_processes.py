"""Counting across real processes: what a killed one had counted is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gateway.metrics import Layout, Totals
from gateway.metrics.catalogue import REQUESTS

MODELS = ("llama",)
KEY = (REQUESTS, ("llama", "/v1/chat/completions", "ok"))

COUNTING = """
import sys
from gateway.metrics import Board, Layout, SlotCounters
from gateway.types import Endpoint, ExchangeRecord, Family, Outcome

layout = Layout(("llama",))
counters = SlotCounters(layout, Board.attach(layout, int(sys.argv[1])).cells)
record = ExchangeRecord("r", Endpoint.CHAT_COMPLETIONS, Family.CHAT, 0.0, model="llama", outcome=Outcome.OK)
while True:
    counters.started("llama")
    counters.finished(record)
    print(flush=True)
"""


@pytest.mark.integration
def test_totals_never_go_back_while_processes_count_and_are_killed() -> None:
    """Three generations, each killed while it counts: every read is at least the last, and at least what was said."""
    totals = Totals()
    layout = Layout(MODELS)
    last = said = 0.0
    for _ in range(3):
        board = totals.create(layout)
        command = [sys.executable, "-c", COUNTING, str(board.fd)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[board.fd]) as process:
            assert process.stdout is not None
            for _ in range(200):
                assert b"\n" == process.stdout.readline()
                said += 1
                now = totals.merged()[KEY][0]
                assert last <= now
                assert said <= now
                last = now
            process.send_signal(signal.SIGKILL)
        last = totals.merged()[KEY][0]
        said = last
        totals.retire(board)
        assert last == totals.merged()[KEY][0]
