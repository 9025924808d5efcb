"""GPU readings as series, from the library's stand-in to the text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import gpu_values, render
from gateway.types import WorkerState
from gateway.workers.nvml import Nvml
from gateway.workers.status import WorkerStatus
from tests.workers.fake_nvml import GIB, FakeNvml


def samples(nvml: FakeNvml, *holders: WorkerStatus) -> dict[tuple[str, ...], float]:
    """Every GPU sample: name and label values, by the labels' names."""
    reader = Nvml(nvml)
    text = render({}, more=gpu_values(reader.sensors(), holders)).decode()
    reader.close()
    return {
        (
            sample.name.removeprefix("gateway_gpu_"),
            *(sample.labels[name] for name in sorted(sample.labels)),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("gateway_gpu_")
    }


def worker(name: str, *gpus: int) -> WorkerStatus:
    return WorkerStatus(name, "llama", WorkerState.READY, "launch", None, 0.0, gpus=gpus)


def test_a_gpu_s_sensors_are_exposed_in_base_units() -> None:
    """Bytes, degrees Celsius, watts, and a share of one."""
    nvml = FakeNvml(1)
    board = nvml.boards[0]
    board.used_bytes, board.utilization_percent, board.temperature_c, board.power_mw = 3 * GIB, 87, 61, 412_500

    assert {
        ("memory_used_bytes", "0"): 3 * GIB,
        ("memory_total_bytes", "0"): 80 * GIB,
        ("utilization_ratio", "0"): 0.87,
        ("temperature_celsius", "0"): 61,
        ("power_watts", "0"): 412.5,
        ("info", "0", "NVIDIA H200", "GPU-0000"): 1,
    } == samples(nvml)


def test_what_a_gpu_does_not_tell_has_no_series() -> None:
    """A sliced GPU tells no utilization; zero would read as idle."""
    nvml = FakeNvml(1)
    nvml.boards[0].not_known = {
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage",
    }

    assert {"memory_used_bytes", "memory_total_bytes", "info"} == {name for name, *_ in samples(nvml)}


def test_leases_join_workers_to_gpus() -> None:
    """One worker on two GPUs, two workers on one; a GPU that is not there is not invented."""
    found = samples(FakeNvml(3), worker("llama-0", 0, 1), worker("llama-1", 1), worker("llama-2", 7), worker("llama-3"))

    assert {("0", "llama", "llama-0"), ("1", "llama", "llama-0"), ("1", "llama", "llama-1")} == {
        labels for name, *labels_ in found if name == "lease" for labels in [tuple(labels_)]
    }


def test_no_reading_leaves_no_series() -> None:
    """Without a driver there are no GPUs, whatever workers were told."""
    assert {} == gpu_values((), [worker("llama-0", 0)])
