"""What NVIDIA's management library says about the GPUs, behind a Protocol; nothing here decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import pynvml

from gateway.errors import EnvironmentProblem
from gateway.workers.gpu_sets import Link


@dataclass(frozen=True, slots=True)
class GpuReading:
    """
    One GPU. `index` is in PCI bus order, as CUDA counts with CUDA_DEVICE_ORDER=PCI_BUS_ID. `pids` compute on it, as far
    as this process may see them (in a container it may see none). `mig`: it is cut into slices.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    pids: tuple[int, ...] = ()
    mig: bool = False


@dataclass(frozen=True, slots=True)
class GpuSensors:
    """
    One GPU's sensors, for the metrics. `utilization` is 0 to 1: the share of the driver's sample period in which some
    kernel ran. None: this GPU, or a slice of one, does not tell.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """A fault that the driver reported for a GPU; the numbers are NVIDIA's."""

    gpu: int
    code: int


class GpuReader(Protocol):
    """Reads GPUs. Every method raises EnvironmentProblem when the driver does not answer."""

    def read(self) -> Sequence[GpuReading]:
        """All GPUs now."""
        ...

    def links(self) -> Mapping[frozenset[int], Link]:
        """How each pair is connected."""
        ...

    def errors(self) -> Sequence[Xid]:
        """Xid faults since the last call; never blocks."""
        ...

    def close(self) -> None:
        """Give the library back."""
        ...


class Nvml:
    """
    The real library, through nvidia-ml-py (`GpuReader`).

    Args:
        library: The module `pynvml`; a test gives a stand-in.

    Raises:
        EnvironmentProblem: no NVIDIA driver, or it does not answer.
    """

    def __init__(self, library: Any = pynvml) -> None:
        self._nvml = library
        self._events: Any = None
        self._handles: list[Any] = []
        with self._translated("be opened"):
            self._nvml.nvmlInit()
        with self._translated("list the GPUs"):
            count = int(self._nvml.nvmlDeviceGetCount())
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            # NVML's own order is the bus order already; sorting costs nothing and holds if that ever changes.
            self._handles = sorted(handles, key=self._bus)
        self._listen()

    def read(self) -> list[GpuReading]:
        with self._translated("read the GPUs"):
            return [self._reading(index, handle) for index, handle in enumerate(self._handles)]

    def sensors(self) -> list[GpuSensors]:
        """All GPUs' sensors now. Takes milliseconds for each GPU: call it in a thread."""
        with self._translated("read the sensors of the GPUs"):
            return [self._sensors(index, handle) for index, handle in enumerate(self._handles)]

    def links(self) -> dict[frozenset[int], Link]:
        found = {}
        for (one, first), (other, second) in combinations(enumerate(self._handles), 2):
            found[frozenset((one, other))] = self._link(first, second)
        return found

    def errors(self) -> list[Xid]:
        found: list[Xid] = []
        if self._events is None:
            return found
        while True:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                # A time-out is how "none" is said. Another error leaves us without this source, not without GPUs.
                return found
            serials = [self._uuid(handle) for handle in self._handles]
            uuid = self._uuid(event.device)
            if uuid in serials:
                found.append(Xid(serials.index(uuid), int(event.eventData)))

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
        self._events = None

    def _listen(self) -> None:
        """Ask for Xid events; some GPUs, drivers and containers refuse, and then there are none."""
        with contextlib.suppress(self._nvml.NVMLError):
            events = self._nvml.nvmlEventSetCreate()
            for handle in self._handles:
                with contextlib.suppress(self._nvml.NVMLError):
                    self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def _reading(self, index: int, handle: Any) -> GpuReading:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        mig = self._optional(lambda: self._nvml.nvmlDeviceGetMigMode(handle)[0], 0)
        processes = self._optional(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
        return GpuReading(
            index=index,
            uuid=self._uuid(handle),
            name=_text(self._nvml.nvmlDeviceGetName(handle)),
            total_bytes=int(memory.total),
            used_bytes=int(memory.used),
            pids=tuple(int(process.pid) for process in processes),
            mig=bool(mig),
        )

    def _sensors(self, index: int, handle: Any) -> GpuSensors:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        percent = self._optional(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu, None)
        celsius = self._optional(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU), None)
        milliwatts = self._optional(lambda: nvml.nvmlDeviceGetPowerUsage(handle), None)
        return GpuSensors(
            index=index,
            uuid=self._uuid(handle),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            total_bytes=int(memory.total),
            used_bytes=int(memory.used),
            utilization=None if percent is None else percent / 100,
            temperature_c=celsius,
            power_w=None if milliwatts is None else milliwatts / 1000,
        )

    def _link(self, first: Any, second: Any) -> Link:
        nvml = self._nvml
        by_nvlink = self._optional(
            lambda: nvml.nvmlDeviceGetP2PStatus(first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK), None
        )
        if by_nvlink == nvml.NVML_P2P_STATUS_OK:
            return Link.NVLINK
        ancestor = self._optional(lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(first, second), None)
        return {
            nvml.NVML_TOPOLOGY_INTERNAL: Link.SAME_BOARD,
            nvml.NVML_TOPOLOGY_SINGLE: Link.ONE_SWITCH,
            nvml.NVML_TOPOLOGY_MULTIPLE: Link.SEVERAL_SWITCHES,
            nvml.NVML_TOPOLOGY_HOSTBRIDGE: Link.HOST_BRIDGE,
            nvml.NVML_TOPOLOGY_NODE: Link.SAME_NODE,
        }.get(ancestor, Link.ACROSS_NODES)

    def _optional(self, question: Callable[[], Any], otherwise: Any) -> Any:
        """The answer, or `otherwise` where this GPU or driver does not know the question."""
        try:
            return question()
        except self._nvml.NVMLError:
            return otherwise

    def _bus(self, handle: Any) -> str:
        return _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId)

    def _uuid(self, handle: Any) -> str:
        return _text(self._nvml.nvmlDeviceGetUUID(handle))

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as exc:
            raise EnvironmentProblem(
                f"the NVIDIA driver could not {what}: {exc}", fix="nvidia-smi (it says more about the driver)"
            ) from exc


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
