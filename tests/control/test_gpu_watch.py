"""The GPUs' sensors on their way into the metrics: what breaks down there must stay there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.clock import SystemClock
from gateway.control.gpu_watch import AFTER_FAILURE_S, INTERVAL_S, GpuWatch
from gateway.errors import EnvironmentProblem
from gateway.log import EventLog
from gateway.workers.nvml import GpuSensors, Nvml
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
    """Each round replaces the last and is told once; the end closes the library."""
    nvml, steps, lines, told = FakeNvml(2), Steps(), list[bytes](), list[object]()
    log = EventLog(lines.append, SystemClock())
    gpus = GpuWatch(lambda: Nvml(nvml), log, steps.sleep, on_reading=told.append)
    with anyio.fail_after(30):
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
    assert [first, second] == told
    assert [INTERVAL_S, INTERVAL_S] == steps.asked
    assert not nvml.open
    assert [] == lines


async def test_no_driver_means_no_readings_and_no_complaint() -> None:
    """Most machines have none; the watch ends at once."""

    def no_driver() -> Nvml:
        raise EnvironmentProblem("no NVIDIA driver", fix="nvidia-smi")

    steps, lines = Steps(), list[bytes]()
    gpus = watch(no_driver, lines, steps)
    with anyio.fail_after(30):
        await gpus.run()

    assert () == gpus.readings
    assert [] == lines
    assert [] == steps.asked


async def test_a_driver_that_stops_answering_is_told_once_and_asked_more_rarely() -> None:
    """No stale reading meanwhile; when it answers again the readings are back, and that is told too."""
    nvml, steps, lines = FakeNvml(1), Steps(), list[bytes]()
    gpus = watch(lambda: Nvml(nvml), lines, steps)
    with anyio.fail_after(30):
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


class Hanging:
    """A driver whose calls return when the test says so, or raise something that nobody expects."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0
        self.closed = False
        self.raises: Exception | None = None

    def sensors(self) -> list[GpuSensors]:
        self.asked += 1
        assert self.go.wait(30)
        if self.raises is not None:
            raise self.raises
        return [GpuSensors(0, "GPU-0", "H200", 80, 20)]

    def close(self) -> None:
        self.closed = True


async def test_a_driver_that_hangs_leaves_no_stale_reading_and_gathers_no_calls() -> None:
    """The last reading is withdrawn and that is told once; the late answer counts when it comes."""
    driver, steps, lines = Hanging(), Steps(), list[bytes]()
    told = anyio.Event()

    def write(line: bytes) -> None:
        lines.append(line)
        told.set()

    gpus = GpuWatch(lambda: driver, EventLog(write, SystemClock()), steps.sleep, patience_s=0.01)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            driver.go.set()
            group.start_soon(gpus.run)
            await steps.reached()
            driver.go.clear()
            before = gpus.readings
            group.start_soon(steps.next)
            await told.wait()
            meanwhile, asked = gpus.readings, driver.asked
            driver.go.set()
            await steps.reached()
            after = gpus.readings
            group.cancel_scope.cancel()

    assert (1, 0, 1) == (len(before), len(meanwhile), len(after))
    assert 2 == asked
    assert b"gpu_sensors_unreadable" in lines[0]
    assert b"gpu_sensors_readable" in lines[1]
    assert driver.closed


async def test_the_end_waits_for_no_call_and_closes_no_library_under_one() -> None:
    """The thread is a daemon, so that the interpreter does not wait for it either."""
    driver, lines = Hanging(), list[bytes]()
    gpus = watch(lambda: driver, lines, Steps())
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(gpus.run)
            while not driver.asked:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    threads = [thread for thread in threading.enumerate() if thread.name == "gpu-sensors"]
    assert threads
    assert all(thread.daemon for thread in threads)
    assert not driver.closed
    driver.go.set()
    for thread in threads:
        thread.join(20)


@pytest.mark.parametrize("where", ["open", "read"])
async def test_whatever_a_driver_library_raises_stays_here(where: str) -> None:
    """A library of another release, or half installed: told, and nothing else ends."""
    driver, steps, lines = Hanging(), Steps(), list[bytes]()
    driver.raises = AttributeError("undefined symbol: nvmlDeviceGetPowerUsage")
    driver.go.set()

    def broken() -> Hanging:
        if where == "open":
            raise OSError("libnvidia-ml.so.1: file too short")
        return driver

    gpus = watch(broken, lines, steps)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(gpus.run)
            if where == "read":
                await steps.reached()
                group.cancel_scope.cancel()

    assert () == gpus.readings
    assert 1 == len(lines)
    assert b"gpu_sensors_unreadable" in lines[0]
