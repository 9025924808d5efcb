"""What is read from NVIDIA's library, on a stand-in for it."""

from __future__ import annotations

import pytest

from gateway.errors import EnvironmentProblem
from gateway.workers.gpu_sets import Link
from gateway.workers.nvml import GpuReading, Nvml, Xid
from tests.workers.fake_nvml import GIB, Board, FakeNvml


def test_gpus_are_told_in_bus_order() -> None:
    """Whatever the library's order: CUDA counts along the bus with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    nvml = FakeNvml()
    nvml.boards = [Board("00000000:9A:00.0", "GPU-late"), Board("00000000:1B:00.0", "GPU-early", used_bytes=3 * GIB)]
    assert [
        GpuReading(0, "GPU-early", "NVIDIA H200", 80 * GIB, 3 * GIB),
        GpuReading(1, "GPU-late", "NVIDIA H200", 80 * GIB, 0),
    ] == Nvml(nvml).read()


def test_processes_and_slices_are_told() -> None:
    """Who computes there, and that a GPU is cut into slices."""
    nvml = FakeNvml(2)
    nvml.boards[0].pids = [17, 18]
    nvml.boards[1].mig = True
    first, second = Nvml(nvml).read()
    assert ((17, 18), False) == (first.pids, first.mig)
    assert ((), True) == (second.pids, second.mig)


def test_what_a_gpu_does_not_know_is_left_out() -> None:
    """Small GPUs know neither MIG nor processes nor links; they are GPUs all the same."""
    nvml = FakeNvml(2)
    for board in nvml.boards:
        board.not_known = {
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetP2PStatus",
            "nvmlDeviceGetTopologyCommonAncestor",
            "nvmlDeviceRegisterEvents",
        }
    reader = Nvml(nvml)
    assert [(False, ()), (False, ())] == [(gpu.mig, gpu.pids) for gpu in reader.read()]
    assert {frozenset((0, 1)): Link.ACROSS_NODES} == reader.links()
    assert [] == reader.errors()


def test_links_are_told_by_pair() -> None:
    """NVLink where there is one, else the nearest common ancestor."""
    links = Nvml(FakeNvml(4, nvlinks=((0, 3),))).links()
    assert 6 == len(links)
    assert Link.NVLINK is links[frozenset((0, 3))]
    assert Link.ONE_SWITCH is links[frozenset((0, 1))]
    assert Link.ACROSS_NODES is links[frozenset((1, 2))]


def test_faults_are_told_once() -> None:
    """By GPU, in order, without waiting for more."""
    nvml = FakeNvml(2)
    reader = Nvml(nvml)
    nvml.raise_xid(1, 79)
    nvml.raise_xid(0, 48)
    assert [Xid(1, 79), Xid(0, 48)] == reader.errors()
    assert [] == reader.errors()


def test_a_driver_without_events_has_no_faults() -> None:
    """Some containers may not listen; that must not cost the GPUs."""
    nvml = FakeNvml(1)
    nvml.events_refused = True
    reader = Nvml(nvml)
    assert [] == reader.errors()
    assert 1 == len(reader.read())
    reader.close()
    assert not nvml.open


def test_no_driver_is_told_in_words() -> None:
    """With the command that says more."""
    nvml = FakeNvml(1)
    nvml.broken = "Driver Not Loaded"
    with pytest.raises(EnvironmentProblem, match=r"Driver Not Loaded.*nvidia-smi"):
        Nvml(nvml)


def test_a_gpu_that_is_lost_is_told_in_words() -> None:
    """While running."""
    nvml = FakeNvml(1)
    reader = Nvml(nvml)
    nvml.broken = "GPU is lost"
    with pytest.raises(EnvironmentProblem, match="read the GPUs: GPU is lost"):
        reader.read()


def test_the_library_is_given_back() -> None:
    """Events and all."""
    nvml = FakeNvml(1)
    reader = Nvml(nvml)
    assert (True, 1) == (nvml.open, nvml.event_sets)
    reader.close()
    assert (False, 0) == (nvml.open, nvml.event_sets)
