"""Reads the GPUs' sensors for the metrics, on a schedule of its own and away from the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import anyio

from gateway.errors import EnvironmentProblem
from gateway.log import EventLog
from gateway.workers.nvml import GpuSensors

INTERVAL_S = 5.0
AFTER_FAILURE_S = 60.0
"""A driver that has lost a GPU takes seconds to say so, each time."""
PATIENCE_S = 15.0
"""With one reading. After that it is no reading of now, and the last one is withdrawn."""

T = TypeVar("T")


class SensorReader(Protocol):
    """Reads sensors; `Nvml` does. Both methods may block; `sensors` raises EnvironmentProblem."""

    def sensors(self) -> Sequence[GpuSensors]: ...

    def close(self) -> None: ...


class GpuWatch:
    """
    The last reading of all GPUs; none while the driver does not answer. `run` is the only writer.

    Whatever the driver does, nothing but the GPU metrics suffers: what it raises is logged, and a call that never
    returns holds up neither the event loop nor the end of the program.

    Args:
        open_reader: Raises EnvironmentProblem where there is no driver; then there is never a reading.
        log: Told when reading begins to fail and when it works again.
        sleep: A test's own.
        patience_s: With one reading.
        on_reading: Told each reading, in the event loop; must not block.
    """

    def __init__(
        self,
        open_reader: Callable[[], SensorReader],
        log: EventLog,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        patience_s: float = PATIENCE_S,
        on_reading: Callable[[Sequence[GpuSensors]], None] = lambda readings: None,
    ) -> None:
        self._open_reader = open_reader
        self._log = log
        self._sleep = sleep
        self._patience_s = patience_s
        self._on_reading = on_reading
        self._failing = False
        self.readings: Sequence[GpuSensors] = ()

    async def run(self) -> None:
        """Until cancelled, or at once where there is no driver."""
        try:
            reader = await _Aside(self._open_reader).result()
        except EnvironmentProblem:
            return
        except Exception as exc:  # a driver library that is broken may raise anything
            self._fails(exc)
            return
        while True:
            reading = _Aside(reader.sensors)
            try:
                self.readings = tuple(await self._in_time(reading))
                self._on_reading(self.readings)
            except Exception as exc:
                self._fails(exc)
                await self._pause(reader, AFTER_FAILURE_S)
                continue
            except BaseException:
                # The library must not be closed under a call that has not returned.
                if reading.done:
                    reader.close()
                raise
            if self._failing:
                self._log.event("gpu_sensors_readable")
            self._failing = False
            await self._pause(reader, INTERVAL_S)

    async def _in_time(self, reading: _Aside[Sequence[GpuSensors]]) -> Sequence[GpuSensors]:
        """The reading, however late; when it is late that is told, and there is none meanwhile."""
        with anyio.move_on_after(self._patience_s):
            return await reading.result()
        self._fails(TimeoutError(f"the NVIDIA driver has not answered for {self._patience_s:g} s"))
        return await reading.result()

    def _fails(self, why: Exception) -> None:
        self.readings = ()
        if not self._failing:
            self._log.event("gpu_sensors_unreadable", level="error", detail=str(why) or type(why).__name__)
        self._failing = True

    async def _pause(self, reader: SensorReader, seconds: float) -> None:
        try:
            await self._sleep(seconds)
        except BaseException:
            reader.close()
            raise


class _Aside(Generic[T]):
    """A call in a thread of its own, which the end of the program does not wait for. `done`: it has returned."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._returned = anyio.Event()
        self._value: T | None = None
        self._error: Exception | None = None
        self.done = False
        threading.Thread(target=self._run, name="gpu-sensors", daemon=True).start()

    async def result(self) -> T:
        """What the call returns or raises."""
        await self._returned.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set with `_returned`

    def _run(self) -> None:
        try:
            self._value = self._call()
        except Exception as exc:  # raised again where it is waited for
            self._error = exc
        self.done = True
        try:
            self._loop.call_soon_threadsafe(self._returned.set)
        except RuntimeError:
            return  # the event loop has ended: nobody waits any more
