"""What only the supervisor can measure: what workers cost, and what the GPUs' sensors say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gateway.clock import Clock
from gateway.config.settings import Model
from gateway.control.gateway_process import GatewaySlot
from gateway.log import EventLog
from gateway.metrics import CostMeter, Values, gpu_values
from gateway.metrics.catalogue import LOG_LINES_DROPPED, PROCESS_CRASHES, PROCESSES_SERVING
from gateway.types import WorkerState
from gateway.workers.nvml import GpuSensors
from gateway.workers.status import WorkerStatus

_RUNS_ELSEWHERE = frozenset({WorkerState.READY, WorkerState.UNHEALTHY, WorkerState.DRAINING})
"""States in which a static worker is taken to have its machine."""


class Gpus(Protocol):
    """Who knows the sensors: `GpuWatch`."""

    @property
    def readings(self) -> Sequence[GpuSensors]: ...


class Processes(Protocol):
    """Who knows the gateway processes: `Front`."""

    @property
    def slots(self) -> Sequence[GatewaySlot]: ...

    @property
    def crashes(self) -> int: ...


class Instruments:
    """
    Kept by the supervisor; `values` goes into `/metrics`.

    Args:
        models: The configuration's, as of now.
        front: The gateway processes.
        gpus: None where GPUs are not looked at.
        log: The supervisor's own, whose losses are told beside those of the gateway processes.
    """

    def __init__(
        self,
        clock: Clock,
        models: Callable[[], Mapping[str, Model]],
        gpus: Gpus | None,
        log: EventLog,
        front: Processes,
    ) -> None:
        self._front = front
        self._gpus = gpus
        self._log = log
        self._costs = CostMeter(clock, lambda name: price_per_hour(models().get(name)))

    @property
    def gpus(self) -> Sequence[GpuSensors]:
        """The last reading of each GPU; none where there are none, or the driver does not answer."""
        return self._gpus.readings if self._gpus is not None else ()

    def changed(self, status: WorkerStatus) -> None:
        """A worker's status is new."""
        occupied = status.state in _RUNS_ELSEWHERE if status.static else status.pid is not None
        self._costs.changed(status.name, status.model, occupied=occupied)

    def values(self, workers: Sequence[WorkerStatus]) -> Values:
        """The series as of now."""
        holders = [worker for worker in workers if worker.pid is not None]
        own: Values = {
            (LOG_LINES_DROPPED, ()): [float(self._log.dropped)],
            (PROCESSES_SERVING, ()): [float(sum(slot.serving for slot in self._front.slots))],
            (PROCESS_CRASHES, ()): [float(self._front.crashes)],
        }
        return own | self._costs.values() | gpu_values(self.gpus, holders)


def price_per_hour(model: Model | None) -> float | None:
    """Of one worker; None without a price."""
    if model is None:
        return None
    if model.price_per_worker_hour is not None:
        return model.price_per_worker_hour
    if model.price_per_gpu_hour is None:
        return None
    return model.price_per_gpu_hour * model.launch.tensor_parallel_size
