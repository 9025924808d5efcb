"""GPU readings as series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from gateway.metrics import catalogue as c
from gateway.metrics.catalogue import Metric
from gateway.metrics.totals import Values


class GpuReport(Protocol):
    """What the exposition needs of a GPU; `workers.nvml.GpuSensors` has it. None: this GPU does not tell."""

    @property
    def index(self) -> int:
        """In PCI bus order."""
        ...

    @property
    def uuid(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def utilization(self) -> float | None:
        """0 to 1."""
        ...

    @property
    def temperature_c(self) -> float | None: ...
    @property
    def power_w(self) -> float | None: ...


class GpuHolder(Protocol):
    """A worker and the GPUs its process has; `workers.status.WorkerStatus` has it."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def gpus(self) -> Sequence[int]: ...


def gpu_values(gpus: Iterable[GpuReport], holders: Iterable[GpuHolder]) -> Values:
    """The series of all GPUs, and who holds which of them; none at all where there is no reading."""
    values: Values = {}
    known = set()
    for gpu in gpus:
        index = str(gpu.index)
        known.add(gpu.index)
        readings: tuple[tuple[Metric, float | None], ...] = (
            (c.GPU_MEMORY_USED, gpu.used_bytes),
            (c.GPU_MEMORY_TOTAL, gpu.total_bytes),
            (c.GPU_UTILIZATION, gpu.utilization),
            (c.GPU_TEMPERATURE, gpu.temperature_c),
            (c.GPU_POWER, gpu.power_w),
        )
        values.update({(metric, (index,)): [float(value)] for metric, value in readings if value is not None})
        values[c.GPU_INFO, (index, gpu.uuid, gpu.name)] = [1.0]
    for holder in holders:
        for index_ in known.intersection(holder.gpus):
            values[c.GPU_LEASE, (str(index_), holder.model, holder.name)] = [1.0]
    return values
