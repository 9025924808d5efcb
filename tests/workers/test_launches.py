"""What a launch takes besides a process (the preflight's blessing, GPUs, flags, a folder), and what it gives back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from gateway.config.settings import Launch, Watch
from gateway.errors import ConfigurationError
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.actor import WorkerActor, WorkerCommand
from gateway.workers.adoption import Adoption
from gateway.workers.command_line import fingerprint
from gateway.workers.gpu_pool import MEMORY_BACK_S, GpuPool
from gateway.workers.nvml import Nvml
from gateway.workers.placement import Gpu
from gateway.workers.services import EXIT_UNKNOWN, ModelFacts, ProbeFailure
from gateway.workers.spec import WorkerSpec
from tests.workers.fake_nvml import GIB, FakeNvml
from tests.workers.fakes import MODEL, FakeProcess, Stage

pytestmark = pytest.mark.anyio

STOPPED, STARTING, READY, UNHEALTHY, DRAINING, STOPPING, BACKOFF, FAILED = WorkerState
REFUSED = ProbeFailure("connection refused")


@asynccontextmanager
async def owned(
    stage: Stage, *specs: WorkerSpec, adopted: Adoption | None = None
) -> AsyncIterator[tuple[WorkerActor, ...]]:
    """Actors whose tasks run; whatever the test did, nothing may be held afterwards."""
    actors = tuple(WorkerActor(spec, stage.services, stage.told.append, adopted) for spec in specs or (stage.spec(),))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for actor in actors:
                group.start_soon(actor.run)
            await stage.time.pass_(0)
            yield actors
            group.cancel_scope.cancel()
    assert stage.nothing_held()
    assert [] == scratch_folders(stage)


def scratch_folders(stage: Stage) -> list[Path]:
    return [
        Path(command.environ["TMPDIR"])
        for command in stage.launcher.commands
        if Path(command.environ["TMPDIR"]).exists()
    ]


def on_gpus(stage: Stage, count: int = 2) -> FakeNvml:
    """Give the stage a machine with GPUs."""
    nvml = FakeNvml(count)
    gpus = [Gpu(index, total_bytes=80 * GIB) for index in range(count)]
    stage.gpus = GpuPool(Nvml(nvml), gpus, clock=stage.time, sleep=stage.time.sleep)
    return nvml


def cuda(stage: Stage, index: int = 0, **launch: object) -> WorkerSpec:
    options = Launch.model_validate(launch)
    return replace(stage.spec(launch=options), name=f"{MODEL}-{index}", variant="cuda")


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({"kv_cache_memory_bytes": "20G"}, ["0.275"]),
        ({"kv_cache_memory_bytes": "20G", "gpu_memory_utilization": 0.5}, ["0.5"]),
        ({}, []),
    ],
)
async def test_an_exact_cache_leaves_room_for_a_neighbour_to_start(
    stage: Stage, launch: dict[str, object], expected: list[str]
) -> None:
    """
    vLLM wants its default of 0.92 of the GPU free at the start whatever the cache's size, so that a second worker on
    the GPU would never start. It is told what the launch really takes; a configured fraction stays, and what the
    configuration asks is the same as before (a running worker is not replaced for it).
    """
    on_gpus(stage, 1)
    spec = cuda(stage, **launch)
    async with owned(stage, spec):
        (command,) = stage.launcher.commands
        given = [after for flag, after in pairwise(command.argv) if flag == "--gpu-memory-utilization"]

    assert expected == given
    assert command.fingerprint == fingerprint(spec)


def visible(stage: Stage) -> list[str]:
    return [command.environ["CUDA_VISIBLE_DEVICES"] for command in stage.launcher.commands]


async def test_a_refused_specification_is_never_started(stage: Stage) -> None:
    """FAILED with key and sentence; no process, no port, no GPU."""

    async def refuse(spec: WorkerSpec) -> Sequence[ConfigurationError]:
        return [ConfigurationError("2 does not divide the model's 9 attention heads", key="models.smol.launch.x")]

    stage.preflight = refuse
    async with owned(stage) as (actor,):
        assert [STARTING, STOPPING, FAILED] == stage.states()
        assert (
            "The worker was not started. models.smol.launch.x: 2 does not divide the model's 9 attention heads."
            == actor.status.last_failure
        )
        assert [] == stage.launcher.processes


async def test_a_worker_runs_on_the_gpus_it_was_given(stage: Stage) -> None:
    """Integer ids in bus order; the status tells them, the record can."""
    on_gpus(stage, 4)
    async with owned(stage, cuda(stage, tensor_parallel_size=2)) as (actor,):
        (command,) = stage.launcher.commands
        assert ("0,1", "PCI_BUS_ID") == (
            command.environ["CUDA_VISIBLE_DEVICES"],
            command.environ["CUDA_DEVICE_ORDER"],
        )
        assert (0, 1) == command.gpus == actor.status.gpus
        assert actor.status.launch_id == command.launch_id
        actor.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(2)
        assert (STOPPED, ()) == (actor.status.state, actor.status.gpus)


async def test_a_worker_without_a_gpu_waits_and_says_for_whom(stage: Stage) -> None:
    """STARTING with a sentence, no process; it goes on by itself when the other one leaves."""
    on_gpus(stage, 1)
    async with owned(stage, cuda(stage, 0), cuda(stage, 1)) as (first, second):
        assert (READY, STARTING) == (first.status.state, second.status.state)
        assert f"Waits for 1 GPU: GPU 0 is held by {MODEL}-0 (92%)." == second.status.phase
        assert 1 == len(stage.launcher.processes)
        await stage.time.pass_(1800)
        assert STARTING is second.status.state
        first.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(3)
        assert (STOPPED, READY) == (first.status.state, second.status.state)


async def test_a_waiting_worker_can_be_stopped(stage: Stage) -> None:
    """The wait is no start that has to be finished; START in the meantime changes nothing."""
    on_gpus(stage, 1)
    async with owned(stage, cuda(stage, 0), cuda(stage, 1)) as (_, second):
        second.command(WorkerCommand.START)
        await stage.time.pass_(1)
        assert STARTING is second.status.state
        second.command(WorkerCommand.STOP)
        await stage.time.pass_(0)
        assert STOPPED is second.status.state
        assert 1 == len(stage.launcher.processes)


async def test_a_gpu_is_free_only_when_its_memory_is(stage: Stage) -> None:
    """The group is dead, the memory not yet back: STOPPING, and nobody else starts there."""
    nvml = on_gpus(stage, 1)
    async with owned(stage, cuda(stage, 0), cuda(stage, 1)) as (first, second):
        nvml.boards[0].used_bytes = 74 * GIB
        first.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(5)
        assert (STOPPING, STARTING) == (first.status.state, second.status.state)
        assert "waiting for the memory of GPU 0" == first.status.phase
        nvml.boards[0].used_bytes = 0
        await stage.time.pass_(2)
        assert (STOPPED, READY) == (first.status.state, second.status.state)


async def test_memory_that_is_never_freed_ends_in_quarantine(stage: Stage) -> None:
    """The crashed worker moves to the other GPU, and the sentence says why the first is not used."""
    nvml = on_gpus(stage, 2)
    async with owned(stage, cuda(stage, 0)) as (actor,):
        nvml.boards[0].used_bytes = 74 * GIB
        stage.launcher.last.exit(0)
        await stage.time.pass_(MEMORY_BACK_S - 1)
        assert STOPPING is actor.status.state
        await stage.time.pass_(3)
        assert READY is actor.status.state
        assert ["0", "1"] == visible(stage)
        pool = stage.gpus
        assert isinstance(pool, GpuPool)
        assert "74.0 GiB are in use" in pool.quarantined[0].reason


async def test_two_failed_starts_move_a_worker_to_another_gpu(stage: Stage) -> None:
    """Twice on the first, with a cause that may be the GPU's, then on the second."""
    on_gpus(stage, 2)
    stage.launcher.prepare = lambda process: process.exit(1) if process.pid < 4002 else None
    async with owned(stage, cuda(stage, 0)) as (actor,):
        await stage.time.pass_(10)
        assert READY is actor.status.state
        assert ["0", "0", "1"] == visible(stage)


async def test_a_wrong_option_is_no_fault_of_the_gpu(stage: Stage) -> None:
    """Causes that lie in the configuration do not speak against it."""
    on_gpus(stage, 2)
    stage.world.health = REFUSED
    async with owned(stage, cuda(stage, 0)) as (actor,):
        stage.log(["OSError: [Errno 98] Address already in use"])
        stage.launcher.last.exit(1)
        await stage.time.pass_(2)
        stage.log(["OSError: [Errno 98] Address already in use"])
        stage.launcher.last.exit(1)
        await stage.time.pass_(3)
        assert ["0", "0", "0"] == visible(stage)
        assert "port" in actor.status.last_failure


async def test_gpus_of_processes_that_do_not_die_stay_taken(stage: Stage) -> None:
    """A process that hangs in the driver holds them, whatever the operator wants."""
    on_gpus(stage, 1)
    async with owned(stage, cuda(stage, 0), cuda(stage, 1)) as (first, second):
        stage.launcher.last.immortal = True
        first.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(20)
        first.command(WorkerCommand.STOP)
        await stage.time.pass_(5)
        assert (STOPPED, STARTING) == (first.status.state, second.status.state)
        stage.launcher.last.immortal = False
        await stage.launcher.last.sweep(1)


async def test_a_mig_slice_is_given_as_it_is_named(stage: Stage) -> None:
    """No whole GPU is leased for it."""
    on_gpus(stage, 1)
    stage.launcher.several = True
    spec = replace(cuda(stage, 0), mig_device="MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f")
    async with owned(stage, spec, cuda(stage, 1)) as (first, second):
        assert [READY, READY] == [first.status.state, second.status.state]
        assert ["MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "0"] == visible(stage)


async def test_devices_named_by_hand_are_nobodys_lease(stage: Stage) -> None:
    """The operator's own CUDA_VISIBLE_DEVICES wins, and nothing is taken from the others for it."""
    on_gpus(stage, 1)
    stage.launcher.several = True
    async with owned(stage, cuda(stage, 0, env={"CUDA_VISIBLE_DEVICES": "GPU-12"}), cuda(stage, 1)):
        assert ["GPU-12", "0"] == visible(stage)


class Flags:
    """An engine that is said to know everything; `forgotten` are the flags it refused."""

    def __init__(self) -> None:
        self.forgotten: frozenset[str] = frozenset()

    async def known(self, python: Path) -> frozenset[str]:
        return frozenset({"--enable-request-id-headers", "--disable-access-log-for-endpoints"}) - self.forgotten

    def forget(self, python: Path, flags: frozenset[str]) -> None:
        self.forgotten |= flags


async def test_optional_flags_are_given_to_engines_that_know_them(stage: Stage) -> None:
    """And to no others."""
    async with owned(stage):
        assert "--enable-request-id-headers" not in stage.launcher.commands[0].argv
    stage.flags = Flags()
    async with owned(stage):
        argv = stage.launcher.commands[-1].argv
        assert "--enable-request-id-headers" in argv
        assert "/health,/metrics" == argv[argv.index("--disable-access-log-for-endpoints") + 1]


async def test_a_flag_that_is_refused_all_the_same_is_left_out(stage: Stage) -> None:
    """The engine's word counts more than what was found in its source: started again without, not given up."""
    stage.flags = flags = Flags()
    stage.world.health = REFUSED
    async with owned(stage) as (actor,):
        stage.log(["api_server.py: error: unrecognized arguments: --enable-request-id-headers"])
        stage.launcher.last.exit(2)
        await stage.time.pass_(0.5)
        assert BACKOFF is actor.status.state
        assert "can do without" in actor.status.last_failure
        stage.world.health = None
        await stage.time.pass_(2)
        assert READY is actor.status.state
        assert "--enable-request-id-headers" not in stage.launcher.last_command.argv
        assert frozenset({"--enable-request-id-headers"}) == flags.forgotten


async def test_an_operators_own_flag_is_not_forgiven(stage: Stage) -> None:
    """It is in the configuration, and only the operator can take it out."""
    stage.flags = Flags()
    stage.world.health = REFUSED
    async with owned(stage) as (actor,):
        stage.log(["api_server.py: error: unrecognized arguments: --swap-space"])
        stage.launcher.last.exit(2)
        await stage.time.pass_(0.5)
        assert FAILED is actor.status.state


async def test_every_launch_has_a_temporary_folder_of_its_own(stage: Stage) -> None:
    """What the engine leaves there goes with the launch."""
    async with owned(stage) as (actor,):
        (first,) = scratch_folders(stage)
        (first / "vllm_dist_1234").touch()
        stage.launcher.last.exit(0)
        await stage.time.pass_(3)
        assert READY is actor.status.state
        (second,) = scratch_folders(stage)
        assert first != second
        assert 0o700 == second.stat().st_mode & 0o777


async def test_a_start_that_gets_on_is_given_time(stage: Stage) -> None:
    """A big model from a slow disk: past the limit, alive as long as its progress bar moves."""
    stage.world.health = REFUSED
    async with owned(stage, stage.spec(launch=Launch(start_timeout_s=300))) as (actor,):
        for percent in range(10, 80, 10):
            await stage.time.pass_(100)
            stage.log([f"Loading safetensors checkpoint shards: {percent}% Completed"])
        assert STARTING is actor.status.state
        await stage.time.pass_(121)
        assert BACKOFF is actor.status.state
        assert "start_timeout_s" in actor.status.last_failure


async def test_a_start_that_only_repeats_itself_is_hung(stage: Stage) -> None:
    """The same complaint once a minute is no progress."""
    stage.world.health = REFUSED
    async with owned(stage, stage.spec(launch=Launch(start_timeout_s=300))) as (actor,):
        for minute in range(1, 6):
            await stage.time.pass_(60)
            stage.log(
                [f"(EngineCore pid=7) INFO 11-29 10:0{minute} No available shared memory broadcast block in 60 s"]
            )
        assert BACKOFF is actor.status.state


async def test_each_feature_is_warmed_up_before_ready(stage: Stage) -> None:
    """Adapters too; a feature that the model has not is fine."""
    stage.world.facts = ModelFacts(names=(MODEL, "sql", "poet"))
    stage.world.not_offered = {"chat", "logprobs"}
    async with owned(stage, stage.spec(launch=Launch(lora_modules={"sql": "/a", "poet": "/b"}))) as (actor,):
        assert READY is actor.status.state
        features = ["generate", "chat", "logprobs", "structured output", "adapter sql", "adapter poet"]
        assert features == stage.world.asked[2:]
        assert "warming up, adapter poet" in [status.phase for status in stage.told]


async def test_a_feature_that_fails_is_tried_again_and_the_others_are_not(stage: Stage) -> None:
    """A slow first answer must not cost all the kernels compiled before."""
    stage.world.features["logprobs"] = [ProbeFailure("timed out")]
    async with owned(stage) as (actor,):
        await stage.time.pass_(1)
        assert READY is actor.status.state
        assert 1 == stage.world.asked.count("chat")
        assert 2 == stage.world.asked.count("logprobs")


async def test_an_adapter_that_is_missing_is_told_with_its_key(stage: Stage) -> None:
    """READY would promise it to clients."""
    async with owned(stage, stage.spec(launch=Launch(lora_modules={"sql": "/a"}))) as (actor,):
        assert FAILED is actor.status.state
        assert f"models.{MODEL}.launch.lora_modules" in actor.status.last_failure


def adoption(process: FakeProcess, **more: object) -> Adoption:
    fields: dict[str, object] = {"address": WorkerAddress(host="127.0.0.1", port=20777), "launch_id": "old-launch"}
    return Adoption(process=process, **{**fields, **more})  # type: ignore[arg-type]


async def test_an_adopted_worker_is_ready_without_a_launch_or_a_warm_up(stage: Stage) -> None:
    """Its model stays loaded; identity and name are checked, its port is ours."""
    process = FakeProcess(5000)
    async with owned(stage, adopted=adoption(process, started_at_s=400.0)) as (actor,):
        assert [STARTING, READY] == stage.states()
        assert ["health", "facts"] == stage.world.asked
        assert [] == stage.launcher.processes
        status = actor.status
        assert ("old-launch", 5000, 400.0) == (status.launch_id, status.pid, status.started_at_s)
        assert {20777} == stage.ports.held
        actor.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(1)
        assert STOPPED is actor.status.state
        assert ["TERM", "KILL group"] == process.signals
        assert set() == stage.ports.held
        actor.command(WorkerCommand.START)
        await stage.time.pass_(0)
        assert (READY, 1) == (actor.status.state, len(stage.launcher.processes))


async def test_an_adopted_worker_that_crashes_is_launched_anew(stage: Stage) -> None:
    """Its exit status is not ours to know."""
    process = FakeProcess(5000)
    async with owned(stage, adopted=adoption(process)) as (actor,):
        process.exit(EXIT_UNKNOWN)
        await stage.time.pass_(0.5)
        assert BACKOFF is actor.status.state
        assert "exit status unknown" in actor.status.last_failure
        await stage.time.pass_(1)
        assert (READY, 1) == (actor.status.state, len(stage.launcher.processes))


@pytest.mark.parametrize("wrong", ["name", "socket", "silence"])
async def test_an_adopted_worker_that_is_another_or_silent_is_replaced(stage: Stage, wrong: str) -> None:
    """Killed as a whole; the launch that follows is as any other."""
    process = FakeProcess(5000)
    if wrong == "name":
        stage.world.facts = ModelFacts(names=("other",))
    elif wrong == "socket":
        process.owns_socket = False
    else:
        stage.world.hang = {"health"}
    async with owned(stage, adopted=adoption(process)) as (actor,):
        if wrong == "silence":
            stage.world.hang = set()
            stage.world.health = REFUSED
            actor.command(WorkerCommand.START)  # ends the question that hangs here for ever
            await stage.time.pass_(60.5)
            stage.world.health = None
        assert ["KILL group"] == process.signals
        assert (BACKOFF if wrong != "name" else FAILED) is actor.status.state
        await stage.time.pass_(2)


async def test_an_adopted_start_goes_on_where_it_is(stage: Stage) -> None:
    """Adopted while it loaded its model: warmed up when it is there."""
    stage.world.health = REFUSED
    async with owned(stage, adopted=adoption(FakeProcess(5000), was_ready=False)) as (actor,):
        await stage.time.pass_(300)
        assert STARTING is actor.status.state
        stage.world.health = None
        await stage.time.pass_(1)
        assert READY is actor.status.state
        assert "generate" in stage.world.asked


async def test_an_adopted_worker_keeps_its_gpus(stage: Stage) -> None:
    """They are leased to it, and its launch's folder goes with it."""
    on_gpus(stage, 2)
    scratch = stage.tmp_path / "old-scratch"
    scratch.mkdir()
    adopted = adoption(FakeProcess(5000), gpus=(1,), scratch_dir=scratch)
    async with owned(stage, cuda(stage), adopted=adopted) as (actor,):
        assert (1,) == actor.status.gpus
        pool = stage.gpus
        assert isinstance(pool, GpuPool)
        assert (f"{MODEL}-0",) == pool.ledger.holders(1)
        actor.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(1)
        assert () == pool.ledger.holders(1)
        assert not scratch.exists()


@pytest.mark.parametrize("stopped", [{"generate", "iterations"}, {"health", "generate", "iterations", "facts"}])
async def test_a_hang_is_dead_within_fifteen_seconds_of_its_limit(stage: Stage, stopped: set[str]) -> None:
    """A stopped engine (health answers) and a stopped API server (nothing does): no probe delays the verdict."""
    watch = Watch(hang_idle_s=20, probe_interval_s=5, probe_timeout_s=10)
    async with owned(stage, stage.spec(watch=watch)) as (actor,):
        stage.world.hang = stopped
        process = stage.launcher.last
        passed_s = 0.0
        while process.orphans and passed_s < 60:
            actor.report_load(1, passed_s)
            # A canary that hangs ends by its own limit, which is the prober's: here it is ended for it.
            await stage.time.pass_(1)
            passed_s += 1
        assert passed_s <= 20 + 15
        stage.world.hang = set()
        assert "hung" in actor.status.last_failure
