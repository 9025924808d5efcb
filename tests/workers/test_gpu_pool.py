"""The owner of the GPUs: waits end when they may, memory must be back, faults take a GPU out of use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.config.settings import Launch, Watch
from gateway.errors import WorkerStartError
from gateway.workers.gpu_pool import MEMORY_BACK_S, GpuPool, Lease
from gateway.workers.gpus import Quarantine
from gateway.workers.nvml import Nvml
from gateway.workers.placement import Gpu
from gateway.workers.spec import WorkerSpec
from tests.workers.fake_nvml import GIB, FakeNvml
from tests.workers.fakes import FakeTime

pytestmark = pytest.mark.anyio


class Rig:
    """A pool on a stand-in machine, moved by hand; `said` are the quarantines it told."""

    def __init__(
        self, count: int = 2, *, weights: int | None = None, nvlinks: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.time = FakeTime()
        self.nvml = FakeNvml(count, nvlinks=nvlinks)
        self.said: list[tuple[int, str]] = []
        self.pool = self.make([Gpu(index, total_bytes=80 * GIB) for index in range(count)], weights)

    def make(self, gpus: Sequence[Gpu], weights: int | None = None) -> GpuPool:
        return GpuPool(
            Nvml(self.nvml),
            gpus,
            clock=self.time,
            sleep=self.time.sleep,
            weight_bytes=lambda spec: weights,
            on_quarantine=lambda index, reason: self.said.append((index, reason)),
        )

    async def acquire(self, spec: WorkerSpec) -> Lease:
        return await self.pool.acquire(spec, lambda sentence: pytest.fail(sentence))

    @asynccontextmanager
    async def waiting(self, spec: WorkerSpec) -> AsyncIterator[tuple[list[str], list[Lease]]]:
        """A worker that waits: what it was told, and its lease once it has one."""
        told: list[str] = []
        got: list[Lease] = []

        async def wait() -> None:
            got.append(await self.pool.acquire(spec, told.append))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await self.time.pass_(0)
            yield told, got
            group.cancel_scope.cancel()


def spec(name: str = "a-0", **launch: object) -> WorkerSpec:
    options = Launch.model_validate(launch)
    return WorkerSpec(
        name=name,
        model=name[0],
        watch=Watch(),
        drain_timeout_s=0,
        variant="cuda",
        launch=options,
        gpus=tuple(options.gpus or ()),
    )


async def test_a_release_wakes_who_waits() -> None:
    """At once, not at the next look; the sentence says who holds what."""
    rig = Rig(1)
    lease = await rig.acquire(spec())
    lease.served()
    async with rig.waiting(spec("b-0")) as (told, got):
        assert ["Waits for 1 GPU: GPU 0 is held by a-0 (92%)."] == told
        await lease.release()
        await rig.time.pass_(0)
        assert [(0,)] == [each.gpus for each in got]


async def test_a_start_that_is_over_lets_a_neighbour_start() -> None:
    """Two small workers on one GPU, one start after the other."""
    rig = Rig(1)
    first = await rig.acquire(spec(gpu_memory_utilization=0.4))
    async with rig.waiting(spec("b-0", gpu_memory_utilization=0.4)) as (_, got):
        assert [] == got
        first.started()
        await rig.time.pass_(0)
        assert [(0,)] == [each.gpus for each in got]


async def test_other_processes_that_leave_are_noticed() -> None:
    """Nobody tells us of them: we look."""
    rig = Rig(1)
    rig.nvml.boards[0].used_bytes = 60 * GIB
    async with rig.waiting(spec()) as (told, got):
        assert "60.0 GiB in use by other processes" in told[-1]
        rig.nvml.boards[0].used_bytes = 0
        await rig.time.pass_(5)
        assert 1 == len(got)


async def test_a_cancelled_wait_leaves_nothing_held() -> None:
    """A worker that is stopped while it waits."""
    rig = Rig(1)
    lease = await rig.acquire(spec())
    async with rig.waiting(spec("b-0")):
        pass
    await lease.release()
    assert () == rig.pool.ledger.holders(0)


async def test_a_lease_ends_when_the_memory_is_back() -> None:
    """Not before: the next worker would be refused by vLLM for want of memory."""
    rig = Rig(1)
    rig.nvml.boards[0].used_bytes = GIB
    lease = await rig.acquire(spec(gpu_memory_utilization=0.9))
    rig.nvml.boards[0].used_bytes = 73 * GIB
    async with anyio.create_task_group() as group:
        group.start_soon(lease.release)
        await rig.time.pass_(3)
        assert ("a-0",) == rig.pool.ledger.holders(0)
        rig.nvml.boards[0].used_bytes = GIB
        await rig.time.pass_(1)
        assert () == rig.pool.ledger.holders(0)
    assert [] == rig.said


async def test_memory_that_does_not_come_back_quarantines_the_gpu() -> None:
    """With figures; it is free again once the memory is."""
    rig = Rig(2)
    lease = await rig.acquire(spec())
    assert (0,) == lease.gpus
    rig.nvml.boards[0].used_bytes = 70 * GIB
    async with anyio.create_task_group() as group:
        group.start_soon(lease.release)
        await rig.time.pass_(MEMORY_BACK_S + 1)
    ((index, reason),) = rig.said
    assert 0 == index
    assert "70.0 GiB are in use 60 s after a-0 was gone, 0.5 GiB at most were expected" in reason
    assert {0: reason} == {index: why.reason for index, why in rig.pool.quarantined.items()}
    assert (1,) == (await rig.acquire(spec())).gpus
    rig.nvml.boards[0].used_bytes = 0
    assert (0,) == (await rig.acquire(spec("b-0"))).gpus
    assert {} == rig.pool.quarantined


async def test_memory_that_somebody_sees_back_ends_the_quarantine_and_a_wait() -> None:
    """Without a look of the pool's own: the sensors are read all the time. A fault is not forgiven that way."""
    rig = Rig(2)
    rig.pool.quarantine(0, Quarantine("70.0 GiB are in use", free_again_below=GIB))
    rig.pool.quarantine(1, Quarantine("Xid 79"))
    rig.nvml.boards[0].used_bytes = 70 * GIB
    async with rig.waiting(spec()) as (_, got):
        rig.pool.settle({0: 2 * GIB, 1: 0})
        await rig.time.pass_(0)
        assert ([], {0, 1}) == (got, set(rig.pool.quarantined))
        rig.nvml.boards[0].used_bytes = 0
        rig.pool.settle({0: 0, 1: 0})
        await rig.time.pass_(0)
        assert [(0,)] == [each.gpus for each in got]
    assert {1} == set(rig.pool.quarantined)


async def test_a_neighbours_memory_is_not_waited_for() -> None:
    """Who shares the GPU and started later uses what it has reserved."""
    rig = Rig(1)
    first = await rig.acquire(spec(gpu_memory_utilization=0.4))
    first.served()
    second = await rig.acquire(spec("b-0", gpu_memory_utilization=0.4))
    second.served()
    rig.nvml.boards[0].used_bytes = 32 * GIB
    with anyio.fail_after(30):
        await first.release()
    assert ("b-0",) == rig.pool.ledger.holders(0)
    assert [] == rig.said


async def test_a_fault_takes_a_gpu_out_of_use_and_another_takes_over() -> None:
    """Xid 79: fallen off the bus. Told once."""
    rig = Rig(2)
    rig.nvml.raise_xid(0, 79)
    assert (1,) == (await rig.acquire(spec())).gpus
    async with rig.waiting(spec("b-0")) as (told, _):
        assert "GPU 0 is quarantined (the driver reported Xid 79; see `dmesg`)" in told[0]
    assert [(0, "the driver reported Xid 79; see `dmesg`")] == rig.said


async def test_the_end_of_a_killed_process_is_no_fault() -> None:
    """The driver reports 45 whenever a group is killed, which we do."""
    rig = Rig(1)
    for code in (13, 31, 43, 45):
        rig.nvml.raise_xid(0, code)
    assert (0,) == (await rig.acquire(spec())).gpus


async def test_two_fast_failed_starts_move_the_worker_elsewhere() -> None:
    """Slow ones say nothing about the GPU."""
    rig = Rig(2)
    for _ in range(2):
        lease = await rig.acquire(spec())
        await rig.time.pass_(700)
        lease.start_failed("slow")
        await lease.release()
    for _ in range(2):
        lease = await rig.acquire(spec())
        assert (0,) == lease.gpus
        lease.start_failed("CUDA error: device-side assert")
        await lease.release()
    assert (1,) == (await rig.acquire(spec())).gpus
    assert "last: CUDA error: device-side assert" in rig.said[0][1]
    rig.pool.forgive(0)
    assert (0,) == (await rig.acquire(spec("b-0"))).gpus


async def test_an_exact_cache_counts_with_weights_and_engine() -> None:
    """20 GiB of cache, 14 GiB of weights, 2 GiB of engine: two fit into 80 GiB, three do not."""
    rig = Rig(1, weights=14 * GIB)
    for name in ("a-0", "a-1"):
        (await rig.acquire(spec(name, kv_cache_memory_bytes="20G"))).started()
    async with rig.waiting(spec("a-2", kv_cache_memory_bytes="20G")) as (told, _):
        assert "a-0 (45%), a-1 (45%)" in told[0]


async def test_slices_and_occupied_gpus_are_for_who_lists_them() -> None:
    """MIG is seen by the driver, occupation by the machine."""
    rig = Rig(3)
    rig.nvml.boards[1].mig = True
    rig.pool = rig.make([Gpu(0, occupied=True), Gpu(1), Gpu(2)])
    assert (2,) == (await rig.acquire(spec())).gpus
    assert (0,) == (await rig.acquire(spec("b-0", gpus=[0]))).gpus
    with pytest.raises(WorkerStartError, match="GPU 1 is cut into MIG slices") as refused:
        await rig.acquire(spec("c-0", tensor_parallel_size=2))
    assert refused.value.permanent
    assert "models.c.launch.gpus" in str(refused.value)


async def test_a_pair_is_chosen_by_its_link() -> None:
    """As the driver tells the links."""
    rig = Rig(4, nvlinks=((1, 3),))
    assert (1, 3) == (await rig.acquire(spec(tensor_parallel_size=2))).gpus


async def test_an_adopted_workers_gpus_come_back_too() -> None:
    """Nobody knows the level before its launch; what is in use beyond its share is taken for it."""
    rig = Rig(2)
    rig.nvml.boards[1].used_bytes = 74 * GIB
    lease = rig.pool.adopt(spec(), (1, 9))
    assert (1,) == lease.gpus
    assert (0,) == (await rig.acquire(spec("b-0"))).gpus
    rig.nvml.boards[1].used_bytes = 0
    await lease.release()
    await lease.release()
    assert (1,) == (await rig.acquire(spec("c-0"))).gpus


async def test_a_driver_that_fails_at_the_end_quarantines() -> None:
    """Whether the memory is back cannot be known."""
    rig = Rig(1)
    lease = await rig.acquire(spec())
    rig.nvml.broken = "GPU is lost"
    await lease.release()
    assert "its memory cannot be read" in rig.pool.quarantined[0].reason
