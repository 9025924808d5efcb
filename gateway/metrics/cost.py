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
    """`price_per_hour`: what it has cost since `since_s`. `priced`: it has ever had a price."""

    model: str
    since_s: float
    occupied: bool = False
    price_per_hour: float = 0.0
    priced: bool = False
    total: float = 0.0


class CostMeter:
    """
    Adds up what each worker has cost; owned by the supervisor.

    Args:
        clock: For how long a worker ran.
        price_per_hour: Of one worker of a model, None when it has no price. Asked again at every count, so that a
            reload takes effect, a first price included; what ran before is counted with the price it ran at.
    """

    def __init__(self, clock: Clock, price_per_hour: Callable[[str], float | None]) -> None:
        self._clock = clock
        self._price_per_hour = price_per_hour
        self._accounts: dict[str, _Account] = {}

    def changed(self, worker: str, model: str, *, occupied: bool) -> None:
        """The worker's state is new. `occupied`: it has, or may have, a process, and with it its share of a machine."""
        account = self._accounts.get(worker)
        if account is None:
            account = self._accounts[worker] = _Account(model, self._clock.monotonic())
        self._count(account)
        account.occupied = occupied
        self._price(account)

    def values(self) -> Values:
        """The totals up to now, in the form `render` takes; none for what has never had a price."""
        for account in self._accounts.values():
            self._count(account)
            self._price(account)
        return {
            (c.WORKER_COST, (account.model, worker)): [account.total]
            for worker, account in self._accounts.items()
            if account.priced
        }

    def _price(self, account: _Account) -> None:
        price = self._price_per_hour(account.model)
        account.priced = account.priced or price is not None
        account.price_per_hour = (price or 0.0) if account.occupied else 0.0

    def _count(self, account: _Account) -> None:
        now_s = self._clock.monotonic()
        account.total += (now_s - account.since_s) * account.price_per_hour / SECONDS_PER_HOUR
        account.since_s = now_s
