"""
A stand-in for NVIDIA's library: what `pynvml` offers of it to us, with a machine that a test shapes and breaks.

`Board.used_bytes` and `pids` are what runs there now; `raise_xid` reports a fault; `broken` makes every call fail as a
driver does that has lost a GPU. `open` must be False at the end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

GIB = 1024**3


class NVMLError(Exception):
    """The library's one kind of error."""


@dataclass
class Board:
    """One GPU of the machine. `not_known`: functions that this GPU answers with "not supported"."""

    bus: str
    uuid: str
    name: str = "NVIDIA H200"
    total_bytes: int = 80 * GIB
    used_bytes: int = 0
    pids: list[int] = field(default_factory=list)
    mig: bool = False
    utilization_percent: int = 0
    temperature_c: int = 30
    power_mw: int = 75_000
    not_known: set[str] = field(default_factory=set)


class FakeNvml:
    """The library, opened by `nvmlInit`; handles are the boards themselves."""

    NVMLError = NVMLError
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK, NVML_P2P_STATUS_NOT_SUPPORTED = 2, 0, 5
    NVML_TEMPERATURE_GPU = 0
    nvmlEventTypeXidCriticalError: ClassVar[int] = 8

    def __init__(self, count: int = 0, *, nvlinks: tuple[tuple[int, int], ...] = (), per_switch: int = 2) -> None:
        self.boards = [Board(f"00000000:{16 + index:02X}:00.0", f"GPU-{index:04d}") for index in range(count)]
        self.nvlinks = {frozenset((f"GPU-{one:04d}", f"GPU-{other:04d}")) for one, other in nvlinks}
        self.per_switch = per_switch
        self.open = False
        self.broken = ""
        self.events_refused = False
        self._xids: deque[tuple[Board, int]] = deque()
        self.event_sets = 0

    def raise_xid(self, index: int, code: int) -> None:
        """The driver reports a fault."""
        self._xids.append((self.boards[index], code))

    def nvmlInit(self) -> None:
        self._check("nvmlInit")
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        self._check("nvmlDeviceGetCount")
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Board:
        return self.boards[index]

    def nvmlDeviceGetPciInfo(self, board: Board) -> SimpleNamespace:
        return SimpleNamespace(busId=board.bus.encode())

    def nvmlDeviceGetUUID(self, board: Board) -> str:
        return board.uuid

    def nvmlDeviceGetName(self, board: Board) -> bytes:
        return board.name.encode()

    def nvmlDeviceGetMemoryInfo(self, board: Board) -> SimpleNamespace:
        self._check("nvmlDeviceGetMemoryInfo", board)
        return SimpleNamespace(
            total=board.total_bytes, used=board.used_bytes, free=board.total_bytes - board.used_bytes
        )

    def nvmlDeviceGetUtilizationRates(self, board: Board) -> SimpleNamespace:
        self._check("nvmlDeviceGetUtilizationRates", board)
        return SimpleNamespace(gpu=board.utilization_percent, memory=0)

    def nvmlDeviceGetTemperature(self, board: Board, sensor: int) -> int:
        self._check("nvmlDeviceGetTemperature", board)
        assert sensor == self.NVML_TEMPERATURE_GPU
        return board.temperature_c

    def nvmlDeviceGetPowerUsage(self, board: Board) -> int:
        self._check("nvmlDeviceGetPowerUsage", board)
        return board.power_mw

    def nvmlDeviceGetMigMode(self, board: Board) -> tuple[int, int]:
        self._check("nvmlDeviceGetMigMode", board)
        return int(board.mig), int(board.mig)

    def nvmlDeviceGetComputeRunningProcesses(self, board: Board) -> list[SimpleNamespace]:
        self._check("nvmlDeviceGetComputeRunningProcesses", board)
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in board.pids]

    def nvmlDeviceGetP2PStatus(self, one: Board, other: Board, index: int) -> int:
        self._check("nvmlDeviceGetP2PStatus", one)
        linked = index == self.NVML_P2P_CAPS_INDEX_NVLINK and frozenset((one.uuid, other.uuid)) in self.nvlinks
        return self.NVML_P2P_STATUS_OK if linked else self.NVML_P2P_STATUS_NOT_SUPPORTED

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Board, other: Board) -> int:
        self._check("nvmlDeviceGetTopologyCommonAncestor", one)
        first, second = sorted((self.boards.index(one), self.boards.index(other)))
        together = first // self.per_switch == second // self.per_switch
        return self.NVML_TOPOLOGY_SINGLE if together else self.NVML_TOPOLOGY_SYSTEM

    def nvmlEventSetCreate(self) -> object:
        if self.events_refused:
            raise NVMLError("Not Supported")
        self.event_sets += 1
        return object()

    def nvmlDeviceRegisterEvents(self, board: Board, kinds: int, events: object) -> None:
        self._check("nvmlDeviceRegisterEvents", board)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0, "the event loop must not wait"
        if not self._xids:
            raise NVMLError("Timeout")
        board, code = self._xids.popleft()
        return SimpleNamespace(device=board, eventType=self.nvmlEventTypeXidCriticalError, eventData=code)

    def nvmlEventSetFree(self, events: object) -> None:
        self.event_sets -= 1

    def _check(self, function: str, board: Board | None = None) -> None:
        if self.broken:
            raise NVMLError(self.broken)
        if board is not None and function in board.not_known:
            raise NVMLError("Not Supported")
