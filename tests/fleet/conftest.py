"""A fleet in memory: a clock that is moved by hand, gauges that remember, snapshots in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gateway.messages import WorkerFailure
from gateway.protocol.request import RequestView
from gateway.types import (
    CircuitState,
    Endpoint,
    Family,
    FleetSnapshot,
    ModelView,
    WorkerAddress,
    WorkerState,
    WorkerView,
)


@dataclass
class FakeClock:
    """Time that passes only when a test says so."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return 1_700_000_000.0 + self.now_s


@dataclass
class RememberedGauges:
    """The last value shown for each worker."""

    in_flight: dict[str, int] = field(default_factory=dict)
    circuits: dict[str, CircuitState] = field(default_factory=dict)

    def worker_in_flight(self, worker: str, attempts: int) -> None:
        self.in_flight[worker] = attempts

    def worker_circuit(self, worker: str, state: CircuitState) -> None:
        self.circuits[worker] = state


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def gauges() -> RememberedGauges:
    return RememberedGauges()


@pytest.fixture
def failures() -> list[WorkerFailure]:
    """What a dispatcher reported."""
    return []


@pytest.fixture
def worker() -> Callable[..., WorkerView]:
    """Makes a worker of the model `llama`; READY unless said otherwise."""

    def make(name: str, state: WorkerState = WorkerState.READY, launch: str = "1", **more: object) -> WorkerView:
        fields: dict[str, object] = {"model": "llama", "changed_at_s": 1000.0, "was_ready_at_s": None} | more
        return WorkerView(name=name, state=state, launch_id=launch, address=WorkerAddress("h", 1), **fields)

    return make


@pytest.fixture
def snapshot() -> Callable[..., FleetSnapshot]:
    """Makes a snapshot of the model `llama` (alias `default`) with some workers."""

    def make(version: int, *workers: WorkerView, draining: bool = False) -> FleetSnapshot:
        models = (ModelView("llama", ("default",), 1),)
        return FleetSnapshot(version=version, models=models, workers=workers, draining=draining)

    return make


@pytest.fixture
def request_view() -> RequestView:
    """A request; what is in it does not matter here."""
    return RequestView(
        endpoint=Endpoint.CHAT_COMPLETIONS,
        family=Family.CHAT,
        body=b"{}",
        model="llama",
        stream=True,
        include_usage=None,
        n=1,
        max_tokens=None,
    )
