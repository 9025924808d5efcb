"""The GPUs' sensors on their way into the metrics: what breaks down there must stay there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from gateway.clock import SystemClock
from gateway.control.gpu_watch import AFTER_FAILURE_S, INTERVAL_S, GpuWatch
from gateway.errors import EnvironmentProblem
from gateway.log import EventLog
from gateway.workers.nvml import Nvml
from tests.workers.fake_nvml import GIB, FakeNvml

pytestmark = pytest.mark.anyio


class Steps:
    """A sleep that returns when the test says so; `asked` are the times that were asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._asleep = anyio.Event()
        self._go = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        self._asleep.set()
        await self._go.wait()

    async def reached(self) -> None:
        """The watch has finished its round."""
        await self._asleep.wait()

    async def next(self) -> None:
        """Another round."""
        go, self._go, self._asleep = self._go, anyio.Event(), anyio.Event()
        go.set()
        await self.reached()


def watch(open_reader: Callable[[], Any], lines: list[bytes], steps: Steps) -> GpuWatch:
    return GpuWatch(open_reader, EventLog(lines.append, SystemClock()), steps.sleep)


async def test_readings_follow_the_sensors_and_the_library_is_given_back() -> None:
    """Each round replaces the last; the end closes the library."""
    nvml, steps, lines = FakeNvml(2), Steps(), list[bytes]()
    gpus = watch(lambda: Nvml(nvml), lines, steps)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(gpus.run)
            await steps.reached()
            first = gpus.readings
            nvml.boards[1].used_bytes = 5 * GIB
            await steps.next()
            second = gpus.readings
            group.cancel_scope.cancel()

    assert [0, 0] == [gpu.used_bytes for gpu in first]
    assert [0, 5 * GIB] == [gpu.used_bytes for gpu in second]
    assert [INTERVAL_S, INTERVAL_S] == steps.asked
    assert not nvml.open
    assert [] == lines


async def test_no_driver_means_no_readings_and_no_complaint() -> None:
    """Most machines have none; the watch ends at once."""

    def no_driver() -> Nvml:
        raise EnvironmentProblem("no NVIDIA driver", fix="nvidia-smi")

    steps, lines = Steps(), list[bytes]()
    gpus = watch(no_driver, lines, steps)
    with anyio.fail_after(10):
        await gpus.run()

    assert () == gpus.readings
    assert [] == lines
    assert [] == steps.asked


async def test_a_driver_that_stops_answering_is_told_once_and_asked_more_rarely() -> None:
    """No stale reading meanwhile; when it answers again the readings are back, and that is told too."""
    nvml, steps, lines = FakeNvml(1), Steps(), list[bytes]()
    gpus = watch(lambda: Nvml(nvml), lines, steps)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(gpus.run)
            await steps.reached()
            nvml.broken = "GPU is lost"
            await steps.next()
            lost = gpus.readings
            await steps.next()
            nvml.broken = ""
            await steps.next()
            found = gpus.readings
            group.cancel_scope.cancel()

    assert () == lost
    assert 1 == len(found)
    assert [INTERVAL_S, AFTER_FAILURE_S, AFTER_FAILURE_S, INTERVAL_S] == steps.asked
    assert 2 == len(lines)
    assert b"GPU is lost" in lines[0]
    assert b"gpu_sensors_readable" in lines[1]
