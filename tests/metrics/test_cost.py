"""What workers cost, by the clock."""

from __future__ import annotations

import pytest

from gateway.metrics import CostMeter
from gateway.metrics.catalogue import WORKER_COST


class FakeClock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return self.now_s


def total(meter: CostMeter, worker: str = "llama-0") -> float:
    return meter.values()[WORKER_COST, ("llama", worker)][0]


def test_a_worker_costs_while_it_has_a_process() -> None:
    """From its start to its end, whatever it does; nothing between two launches."""
    clock = FakeClock()
    meter = CostMeter(clock, lambda model: 7.2)

    meter.changed("llama-0", "llama", occupied=True)
    clock.now_s += 500
    meter.changed("llama-0", "llama", occupied=True)
    clock.now_s += 500
    meter.changed("llama-0", "llama", occupied=False)
    clock.now_s += 10_000
    meter.changed("llama-0", "llama", occupied=True)
    clock.now_s += 1000

    assert pytest.approx(4.0) == total(meter)
    assert pytest.approx(4.0) == total(meter)


def test_a_model_without_a_price_has_no_series() -> None:
    """Zero would read as free of charge."""
    meter = CostMeter(FakeClock(), lambda model: None)
    meter.changed("llama-0", "llama", occupied=True)

    assert {} == meter.values()


def test_another_price_counts_from_when_it_was_set() -> None:
    """What ran before the reload keeps its price, and a price that is taken away leaves the total."""
    clock = FakeClock()
    prices: dict[str, float | None] = {"llama": 3.6}
    meter = CostMeter(clock, prices.__getitem__)
    meter.changed("llama-0", "llama", occupied=True)
    clock.now_s += 1000
    assert pytest.approx(1.0) == total(meter)

    prices["llama"] = 36.0
    meter.changed("llama-0", "llama", occupied=True)
    clock.now_s += 100
    assert pytest.approx(2.0) == total(meter)
    prices["llama"] = None
    meter.changed("llama-0", "llama", occupied=True)
    clock.now_s += 1000

    assert pytest.approx(2.0) == total(meter)


def test_workers_have_accounts_of_their_own() -> None:
    """One stops, the other goes on."""
    clock = FakeClock()
    meter = CostMeter(clock, lambda model: 3.6)
    for worker in ("llama-0", "llama-1"):
        meter.changed(worker, "llama", occupied=True)
    clock.now_s += 1000
    meter.changed("llama-0", "llama", occupied=False)
    clock.now_s += 1000

    assert pytest.approx(1.0) == total(meter)
    assert pytest.approx(2.0) == total(meter, "llama-1")


def test_a_first_price_counts_from_when_it_was_set() -> None:
    """The reload restarts no worker, so no worker's state changes; and a price may come back."""
    clock = FakeClock()
    prices: dict[str, float | None] = {"llama": None}
    meter = CostMeter(clock, prices.__getitem__)
    meter.changed("llama-0", "llama", occupied=True)
    clock.now_s += 1000
    assert {} == meter.values()
    prices["llama"] = 3.6
    assert pytest.approx(0.0) == total(meter)
    clock.now_s += 1000
    assert pytest.approx(1.0) == total(meter)
    prices["llama"] = None
    assert pytest.approx(1.0) == total(meter)
    clock.now_s += 1000
    assert pytest.approx(1.0) == total(meter)
    prices["llama"] = 3.6
    assert pytest.approx(1.0) == total(meter)
    clock.now_s += 1000

    assert pytest.approx(2.0) == total(meter)
