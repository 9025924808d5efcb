"""What this machine has: GPUs as the NVIDIA driver reports them, and the cores we may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

import psutil
import pynvml

from gateway.errors import EnvironmentProblem
from gateway.workers.placement import Gpu, Machine

# A desktop or the driver's own bookkeeping holds some memory on an idle GPU.
_IDLE_BYTES = 1024**3


class GpuInventory(Protocol):
    """Where GPUs are looked up."""

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs in PCI bus order; none on a machine without an NVIDIA driver."""
        ...


class NvmlInventory:
    """Asks the NVIDIA driver through NVML."""

    def gpus(self) -> tuple[Gpu, ...]:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            # No library, no driver, or no device: a machine without usable GPUs, which `gateway doctor` explains.
            return ()
        try:
            return tuple(self._gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
        except pynvml.NVMLError as exc:
            raise EnvironmentProblem(
                f"the NVIDIA driver does not list its GPUs: {exc}", fix="see what `nvidia-smi` says"
            ) from exc
        finally:
            pynvml.nvmlShutdown()

    def _gpu(self, index: int) -> Gpu:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return Gpu(
            index=index,
            uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
            name=str(pynvml.nvmlDeviceGetName(handle)),
            total_bytes=int(memory.total),
            free_bytes=int(memory.free),
            occupied=int(memory.used) > _IDLE_BYTES or bool(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        )


def discover_machine(inventory: GpuInventory, environ: Mapping[str, str]) -> Machine:
    """
    What the workers may share out.

    Args:
        environ: The supervisor's environment, for CUDA_VISIBLE_DEVICES.

    Raises:
        EnvironmentProblem: CUDA_VISIBLE_DEVICES cannot be understood, or the driver fails.
    """
    return Machine(gpus=visible(inventory.gpus(), environ.get("CUDA_VISIBLE_DEVICES")), cpus=usable_cpus())


def visible(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """
    Those of `gpus` that CUDA_VISIBLE_DEVICES (None: not set) names, by index or by the beginning of the UUID.

    CUDA stops at the first entry that it does not know; so do we.
    """
    if variable is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.startswith("MIG-"):
            raise EnvironmentProblem(
                f"CUDA_VISIBLE_DEVICES names a MIG slice ({entry}), which is not assigned by itself",
                fix="set models.NAME.launch.env.CUDA_VISIBLE_DEVICES to it, one worker per slice",
            )
        found = [
            gpu for gpu in gpus if entry == str(gpu.index) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))
        ]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen)


def usable_cpus() -> tuple[int, ...]:
    """
    One logical CPU per physical core of those this process may run on.

    The engine's threads are compute bound: a second one on the same core only takes turns with the first.
    """
    if sys.platform == "linux":
        allowed = sorted(os.sched_getaffinity(0))
        seen: set[str] = set()
        cores = []
        for cpu in allowed:
            siblings = _siblings(cpu)
            if siblings not in seen:
                seen.add(siblings)
                cores.append(cpu)
        return tuple(cores)
    return tuple(range(psutil.cpu_count() or 1))


def _siblings(cpu: int) -> str:
    """The logical CPUs of the same core, as the kernel writes them; the CPU itself where it does not tell."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return str(cpu)
