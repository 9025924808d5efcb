"""Reads the GPUs' sensors for the metrics, on a schedule of its own and away from the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio

from gateway.errors import EnvironmentProblem
from gateway.log import EventLog
from gateway.workers.nvml import GpuSensors

INTERVAL_S = 5.0
AFTER_FAILURE_S = 60.0
"""A driver that has lost a GPU takes seconds to say so, each time."""


class SensorReader(Protocol):
    """Reads sensors; `Nvml` does. Both methods may block; `sensors` raises EnvironmentProblem."""

    def sensors(self) -> Sequence[GpuSensors]: ...

    def close(self) -> None: ...


class GpuWatch:
    """
    The last reading of all GPUs; none while the driver does not answer. `run` is the only writer.

    Whatever the driver does, nothing but the GPU metrics suffers.

    Args:
        open_reader: Raises EnvironmentProblem where there is no driver; then there is never a reading.
        log: Told when reading begins to fail and when it works again.
        sleep: A test's own.
    """

    def __init__(
        self,
        open_reader: Callable[[], SensorReader],
        log: EventLog,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._open_reader = open_reader
        self._log = log
        self._sleep = sleep
        self.readings: Sequence[GpuSensors] = ()

    async def run(self) -> None:
        """Until cancelled, or at once where there is no driver."""
        try:
            reader = await anyio.to_thread.run_sync(self._open_reader, abandon_on_cancel=True)
        except EnvironmentProblem:
            return
        failing = False
        try:
            while True:
                try:
                    self.readings = tuple(await anyio.to_thread.run_sync(reader.sensors, abandon_on_cancel=True))
                except EnvironmentProblem as exc:
                    self.readings = ()
                    if not failing:
                        self._log.event("gpu_sensors_unreadable", level="error", detail=str(exc))
                    failing = True
                    await self._sleep(AFTER_FAILURE_S)
                    continue
                if failing:
                    self._log.event("gpu_sensors_readable")
                failing = False
                await self._sleep(INTERVAL_S)
        finally:
            reader.close()
