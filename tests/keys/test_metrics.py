"""What the metrics say of a key at its limit."""

from __future__ import annotations

import pytest

from gateway.log import request_fields
from gateway.metrics import Layout, SlotCounters, Totals, render
from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Family, Outcome


@pytest.mark.parametrize(("rejection", "reason"), [("tenant_limit", "tenant_limit"), ("", "other"), ("evil", "other")])
def test_a_rejection_is_counted_by_its_reason_and_not_by_the_clients_code(rejection: str, reason: str) -> None:
    """The code is what SDKs look for; the label comes from a closed set."""
    layout = Layout(("m",), (("m", "m-0"),))
    totals = Totals()
    board = totals.create(layout)
    counters = SlotCounters(layout, board.cells)
    record = ExchangeRecord("i", Endpoint.CHAT_COMPLETIONS, Family.CHAT, 0.0, "m", "acme", outcome=Outcome.REJECTED)
    record.error_code, record.rejection = "rate_limit_exceeded", rejection
    counters.started("m", "acme")
    counters.finished(record)
    text = render(totals.merged()).decode()
    totals.retire(board)

    assert f'gateway_rejections_total{{model="m",reason="{reason}"}} 1.0' in text
    assert "evil" not in text
    assert rejection == request_fields(record).get("rejection", "")
