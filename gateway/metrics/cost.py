"""What workers cost: a price per hour, counted while a worker has a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.clock import Clock
from gateway.metrics import catalogue as c
from gateway.metrics.totals import Values

SECONDS_PER_HOUR = 3600.0


@dataclass(slots=True)
class _Account:
    model: str
    since_s: float
    price_per_hour: float
    total: float = 0.0


class CostMeter:
    """
    Adds up what each worker has cost; owned by the supervisor.

    Args:
        clock: For how long a worker ran.
        price_per_hour: Of one worker of a model, None when it has no price. Asked again at every count, so that a
            reload takes effect; what ran before is counted with the price it ran at.
    """

    def __init__(self, clock: Clock, price_per_hour: Callable[[str], float | None]) -> None:
        self._clock = clock
        self._price_per_hour = price_per_hour
        self._accounts: dict[str, _Account] = {}

    def changed(self, worker: str, model: str, *, occupied: bool) -> None:
        """The worker's state is new. `occupied`: it has, or may have, a process, and with it its share of a machine."""
        account = self._accounts.get(worker)
        if account is None:
            if self._price_per_hour(model) is None:
                return
            account = self._accounts[worker] = _Account(model, self._clock.monotonic(), 0.0)
        self._count(account)
        account.price_per_hour = (self._price_per_hour(model) or 0.0) if occupied else 0.0

    def values(self) -> Values:
        """The totals up to now, in the form `render` takes."""
        for account in self._accounts.values():
            self._count(account)
            if account.price_per_hour:
                account.price_per_hour = self._price_per_hour(account.model) or 0.0
        return {(c.WORKER_COST, (account.model, worker)): [account.total] for worker, account in self._accounts.items()}

    def _count(self, account: _Account) -> None:
        now_s = self._clock.monotonic()
        account.total += (now_s - account.since_s) * account.price_per_hour / SECONDS_PER_HOUR
        account.since_s = now_s
