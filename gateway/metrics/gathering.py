"""Exchanges that have ended are counted some at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from gateway.gaps import TokenGaps
from gateway.metrics.counters import SlotCounters
from gateway.record import ExchangeRecord

GATHER_S: Final = 0.05
"""An exchange is counted and logged at most so long after its end."""
MOST: Final = 16
"""So many are not waited for: together they take as long as a few events do."""
_LOG: Final = logging.getLogger("gateway.metrics")


class GatheredCounters:
    """
    The recorder of one gateway process (`proxy.interfaces.Recorder`) in front of its counters.

    An exchange ends between events of other streams, which would wait for its counting; and what counts would have to
    be fetched into the processor's caches each time. Until it is counted it is in flight. Whoever has waited for
    `GATHER_S`, or called `flush`, sees all.

    Args:
        counters: What counts.
        later: Calls a function after so many seconds: the event loop's `call_later`.
    """

    def __init__(self, counters: SlotCounters, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._counters = counters
        self._later = later
        self._due = False
        self._ended: list[ExchangeRecord] = []

    def started(self, model: str, tenant: str | None) -> None:
        """See `SlotCounters`."""
        self._counters.started(model, tenant)

    def inter_token(self, model: str) -> TokenGaps:
        """See `SlotCounters`."""
        return self._counters.inter_token(model)

    def finished(self, record: ExchangeRecord) -> None:
        """Count an exchange that was `started`, and hand it to the log, soon."""
        self._ended.append(record)
        if len(self._ended) >= MOST or record.body:  # a prompt in the log is a large line, one at a time is enough
            self.flush()
        elif not self._due:
            self._later(GATHER_S, self._come_due)
            self._due = True

    def flush(self) -> None:
        """Count what has ended so far."""
        ended, self._ended = self._ended, []
        for record in ended:
            try:
                self._counters.count(record)
            except Exception:  # a defect of ours must not cost the others their counts
                _LOG.exception("an exchange could not be counted")
        self._counters.flush()

    def _come_due(self) -> None:
        self._due = False
        self.flush()
