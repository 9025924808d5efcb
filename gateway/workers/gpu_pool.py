"""The one owner of the GPU ledger: it reads the GPUs, waits for them, and sees their memory come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from gateway.clock import Clock
from gateway.errors import EnvironmentProblem, WorkerStartError
from gateway.workers.gpus import DEFAULT_SHARE, GIB, GpuLedger, GpuNeed, Granted, Impossible, Quarantine
from gateway.workers.inbox import first
from gateway.workers.nvml import GpuReader, GpuReading
from gateway.workers.placement import Gpu
from gateway.workers.sizes import parsed_bytes
from gateway.workers.spec import WorkerSpec

LOOK_AGAIN_S = 5.0
"""A worker that waits looks so often whether other processes have left, besides at every release of ours."""
MEMORY_BACK_S = 60.0
"""Memory of a dead group is back within a second where all is well."""
MEMORY_POLL_S = 0.25
MEMORY_SLACK_BYTES = 512 * 1024 * 1024
"""What may stay in use beyond the level before the launch: other processes' contexts move by that much."""
FAST_START_S = 600.0
"""A failed start counts against the GPU only when it failed within so many seconds."""
ENGINE_BYTES = 2 * GIB
"""Besides weights and KV cache: CUDA context, activations, graphs. Counted when the KV cache has an exact size."""

# The program's own faults, or the driver telling that it cleaned up after a killed process, or mended something: the
# GPU is as good as before. 13 graphics exception, 31 page fault, 43 and 45 channel ended, 63 row remapped.
HARMLESS_XIDS = frozenset({13, 31, 43, 45, 63})


class GpuPool:
    """
    Shares GPUs out (`GpuLeases`).

    Args:
        reader: What the driver says.
        gpus: Those that may be used, as `machine_from` found them; `occupied` ones only for who lists them.
        weight_bytes: The size of a specification's weights, None when it is not known.
        sleep: Belongs to `clock`.
        on_quarantine: Told once per GPU, with the reason.
    """

    def __init__(
        self,
        reader: GpuReader,
        gpus: Sequence[Gpu],
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        weight_bytes: Callable[[WorkerSpec], int | None] = lambda spec: None,
        on_quarantine: Callable[[int, str], None] = lambda index, reason: None,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._sleep = sleep
        self._weight_bytes = weight_bytes
        self._on_quarantine = on_quarantine
        readings = {reading.index: reading for reading in reader.read()}
        by_list_only = {gpu.index: "is used by other processes" for gpu in gpus if gpu.occupied}
        by_list_only |= {
            gpu.index: "is cut into MIG slices (list them in launch.mig_devices)"
            for gpu in gpus
            if gpu.index in readings and readings[gpu.index].mig
        }
        self.ledger = GpuLedger(
            [_completed(gpu, readings.get(gpu.index)) for gpu in gpus],
            reader.links(),
            usable_by_list_only=by_list_only,
        )
        self._told: set[int] = set()
        self._changed = anyio.Event()

    @property
    def quarantined(self) -> Mapping[int, Quarantine]:
        """GPUs out of use, with the reason of each."""
        return self.ledger.quarantined

    async def acquire(self, spec: WorkerSpec, waiting: Callable[[str], None]) -> Lease:
        need = self._need(spec)
        while True:
            used = self.look()
            answer = self.ledger.request(need, used)
            if isinstance(answer, Granted):
                before = {index: used.get(index, 0) for index in answer.gpus}
                share = self._exact_share(need, answer.gpus)
                return Lease(self, spec.name, answer.gpus, before, self._clock.monotonic(), share)
            if isinstance(answer, Impossible):
                raise WorkerStartError(
                    answer.sentence,
                    fix=f"change models.{spec.model}.launch.gpus, tensor_parallel_size or replicas",
                    permanent=True,
                )
            waiting(answer.sentence)
            await first(lambda: self._sleep(LOOK_AGAIN_S), self._changed.wait)

    def adopt(self, spec: WorkerSpec, gpus: tuple[int, ...]) -> Lease:
        self.ledger.adopt(self._need(spec), gpus)
        # Nobody knows the level before its launch: what is in use now less what the worker may hold.
        used = self.look()
        held = self._need(spec)
        before = {
            index: max(0, used.get(index, 0) - int(held.of(gpu) * gpu.total_bytes))
            for index, gpu in self.ledger.gpus.items()
            if index in gpus
        }
        return Lease(self, spec.name, tuple(index for index in gpus if index in before), before, None)

    def look(self) -> dict[int, int]:
        """Read the GPUs: quarantine those with faults, forgive those whose memory came back; bytes in use by GPU."""
        for error in self._reader.errors():
            if error.code not in HARMLESS_XIDS:
                self.quarantine(error.gpu, Quarantine(f"the driver reported Xid {error.code}; see `dmesg`"))
        used = {reading.index: reading.used_bytes for reading in self._reader.read()}
        self.settle(used)
        return used

    def settle(self, used: Mapping[int, int]) -> None:
        """Forgive GPUs whose memory has come back, whoever has read the bytes in use."""
        before = set(self.ledger.quarantined)
        self.ledger.settle(used)
        if back := before - set(self.ledger.quarantined):
            self._told -= back
            self.changed()

    def quarantine(self, index: int, why: Quarantine) -> None:
        """Take a GPU out of use."""
        self.ledger.quarantine(index, why)
        self.tell()

    def forgive(self, index: int) -> None:
        """Use a quarantined GPU again, because somebody says that it is mended."""
        self.ledger.forgive(index)
        self._told.discard(index)
        self.changed()

    def tell(self) -> None:
        """Tell new quarantines."""
        for index, why in self.ledger.quarantined.items():
            if index not in self._told:
                self._told.add(index)
                self._on_quarantine(index, why.reason)

    def changed(self) -> None:
        """Wake those who wait."""
        self._changed.set()
        self._changed = anyio.Event()

    async def memory_back(self, worker: str, before: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """
        Wait until the memory is back; GPUs where it is not, with bytes in use and the level that was expected.

        Other workers that share a GPU and started later may hold what they reserve.
        """
        until_s = self._clock.monotonic() + MEMORY_BACK_S
        while True:
            used = self.look()
            levels = {
                index: level + self.ledger.reserved_by_others(worker, index) + MEMORY_SLACK_BYTES
                for index, level in before.items()
            }
            late = {index: (used[index], level) for index, level in levels.items() if used.get(index, 0) > level}
            if not late or self._clock.monotonic() >= until_s:
                return late
            await self._sleep(MEMORY_POLL_S)

    def _exact_share(self, need: GpuNeed, gpus: Sequence[int]) -> float | None:
        """The largest fraction that an exact size comes to on these GPUs; None without one, or on unknown totals."""
        shares = [need.of(self.ledger.gpus[index]) for index in gpus if self.ledger.gpus[index].total_bytes]
        return max(shares) if need.bytes_each is not None and shares else None

    def _need(self, spec: WorkerSpec) -> GpuNeed:
        launch = spec.launch
        exact = None
        if launch.kv_cache_memory_bytes is not None:
            weights = self._weight_bytes(spec) or 0
            exact = parsed_bytes(launch.kv_cache_memory_bytes) + weights // launch.tensor_parallel_size + ENGINE_BYTES
        return GpuNeed(
            worker=spec.name,
            count=launch.tensor_parallel_size,
            share=DEFAULT_SHARE if launch.gpu_memory_utilization is None else launch.gpu_memory_utilization,
            bytes_each=exact,
            listed=None if launch.gpus is None else spec.gpus,
            preferred=spec.gpus,
        )


@dataclass(slots=True)
class Lease:
    """GPUs that one launch holds (`GpuLease`). `began_at_s` is None for an adopted worker."""

    _pool: GpuPool
    _worker: str
    gpus: tuple[int, ...]
    _before: Mapping[int, int]
    _began_at_s: float | None
    memory_share: float | None = None
    _released: bool = False

    def started(self) -> None:
        if not self._released:
            self._pool.ledger.started(self._worker)
            self._pool.changed()

    def served(self) -> None:
        self._pool.ledger.served(self._worker)
        self._pool.changed()

    def start_failed(self, detail: str) -> None:
        if self._began_at_s is None or self._pool._clock.monotonic() - self._began_at_s > FAST_START_S:
            return
        self._pool.ledger.start_failed(self._worker, self.gpus, detail)
        self._pool.tell()

    async def release(self) -> None:
        if self._released:
            return
        try:
            late = await self._pool.memory_back(self._worker, self._before)
        except EnvironmentProblem as exc:
            late = {}
            for index in self.gpus:
                self._pool.quarantine(index, Quarantine(f"its memory cannot be read: {exc.message}"))
        for index, (used, level) in late.items():
            self._pool.quarantine(
                index,
                Quarantine(
                    f"{used / GIB:.1f} GiB are in use {MEMORY_BACK_S:g} s after {self._worker} was gone, "
                    f"{level / GIB:.1f} GiB at most were expected (nvidia-smi tells by whom)",
                    free_again_below=level,
                ),
            )
        self._released = True
        self._pool.ledger.release(self._worker)
        self._pool.changed()


def _completed(gpu: Gpu, reading: GpuReading | None) -> Gpu:
    """The machine's view with the driver's total, which may be missing in the former."""
    if gpu.total_bytes or reading is None:
        return gpu
    return Gpu(gpu.index, reading.uuid, reading.name, reading.total_bytes, gpu.free_bytes, gpu.occupied)
