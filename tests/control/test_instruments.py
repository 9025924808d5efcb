"""What only the supervisor measures: whose GPU it is, and what a worker costs while it has a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.config.settings import Launch, Model
from gateway.control.instruments import Instruments, price_per_hour
from gateway.log import EventLog
from gateway.metrics.catalogue import GPU_LEASE, WORKER_COST
from gateway.types import WorkerState
from gateway.workers.nvml import GpuSensors
from gateway.workers.status import WorkerStatus
from tests.control.fakes import NO_PROCESSES


class FakeClock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return self.now_s


LOG = EventLog(lambda line: None, FakeClock())


class Gpus:
    """A watch with one reading."""

    readings = (GpuSensors(0, "GPU-0", "H200", 80, 1),)


PRICED = Model(model="m", price_per_gpu_hour=3.6, launch=Launch(tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("model", "price"),
    [
        (PRICED, 7.2),
        (Model(model="m", price_per_worker_hour=0.5), 0.5),
        (Model(model="m", price_per_worker_hour=0.5, price_per_gpu_hour=3.6), 0.5),
        (Model(model="m"), None),
        (None, None),
    ],
)
def test_a_worker_s_price_is_that_of_its_gpus_unless_it_has_its_own(model: Model | None, price: float | None) -> None:
    assert price == price_per_hour(model)


def test_a_launched_worker_costs_from_its_process_s_start_to_its_end() -> None:
    """Waiting for a GPU and pausing between two starts cost nothing; loading does."""
    clock = FakeClock()
    instruments = Instruments(clock, lambda: {"m": PRICED}, None, LOG, NO_PROCESSES)
    waiting = WorkerStatus("m-0", "m", WorkerState.STARTING, "one", None, 0.0)
    for status, seconds in (
        (waiting, 1000),
        (replace(waiting, pid=7), 1000),
        (replace(waiting, pid=7, state=WorkerState.READY), 1000),
        (replace(waiting, state=WorkerState.BACKOFF), 1000),
    ):
        instruments.changed(status)
        clock.now_s += seconds

    assert pytest.approx(4.0) == instruments.values([waiting])[WORKER_COST, ("m", "m-0")][0]


def test_a_static_worker_costs_while_it_answers_or_is_known_to_run() -> None:
    """Nobody knows when somebody else's machine is off; one that never answered is not charged."""
    clock = FakeClock()
    instruments = Instruments(
        clock, lambda: {"m": Model(model="m", price_per_worker_hour=3.6)}, None, LOG, NO_PROCESSES
    )
    status = WorkerStatus("m-static-0", "m", WorkerState.STARTING, "one", None, 0.0, static=True)
    for state in (WorkerState.STARTING, WorkerState.READY, WorkerState.UNHEALTHY, WorkerState.STOPPED):
        instruments.changed(replace(status, state=state))
        clock.now_s += 1000

    assert pytest.approx(2.0) == instruments.values([status])[WORKER_COST, ("m", "m-static-0")][0]


def test_only_a_worker_with_a_process_holds_a_gpu() -> None:
    """Those that are only meant to get one do not."""
    instruments = Instruments(FakeClock(), dict, Gpus(), LOG, NO_PROCESSES)
    running = WorkerStatus("m-0", "m", WorkerState.READY, "one", None, 0.0, pid=7, gpus=(0,))
    planned = WorkerStatus("m-1", "m", WorkerState.STOPPED, "", None, 0.0, gpus=(0,))

    values = instruments.values([running, planned])

    assert [("0", "m", "m-0")] == [labels for metric, labels in values if metric is GPU_LEASE]
