"""Counting across real processes: what a killed one had counted is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gateway.metrics import Layout, Totals
from gateway.metrics.catalogue import REQUESTS, TENANT_REQUESTS

MODELS = ("llama",)
KEY = (REQUESTS, ("llama", "/v1/chat/completions", "ok"))
OF_TENANT = (TENANT_REQUESTS, ("acme", "ok"))

COUNTING = """
import sys
from gateway.metrics import Board, Layout, SlotCounters
from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Family, Outcome

layout = Layout(("llama",))
counters = SlotCounters(layout, Board.attach(layout, int(sys.argv[1])).cells)
record = ExchangeRecord("r", Endpoint.CHAT_COMPLETIONS, Family.CHAT, 0.0, "llama", "acme", outcome=Outcome.OK)
while True:
    counters.started("llama", "acme")
    counters.finished(record)
    print(flush=True)
"""


@pytest.mark.integration
def test_totals_never_go_back_while_processes_count_and_are_killed() -> None:
    """Three generations, each killed while it counts: every read is at least the last, and at least what was said."""
    totals = Totals()
    layout = Layout(MODELS)
    last, last_of_tenant = 0.0, 0.0
    said = said_at_all = 0
    for _ in range(3):
        board = totals.create(layout)
        command = [sys.executable, "-c", COUNTING, str(board.fd)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[board.fd]) as process:
            assert process.stdout is not None
            for _ in range(200):
                assert b"\n" == process.stdout.readline()
                said += 1
                said_at_all += 1
                values = totals.merged()
                now, of_tenant = values[KEY][0], values[OF_TENANT][0]
                assert last <= now
                assert said <= now
                assert last_of_tenant <= of_tenant
                assert said_at_all <= of_tenant
                last, last_of_tenant = now, of_tenant
            process.send_signal(signal.SIGKILL)
        values = totals.merged()
        last, last_of_tenant = values[KEY][0], values[OF_TENANT][0]
        said = int(last)
        totals.retire(board)
        assert last == totals.merged()[KEY][0]
        assert last_of_tenant == totals.merged()[OF_TENANT][0]
        assert last - 3 <= last_of_tenant <= last  # the last request of each process may have been counted in part
