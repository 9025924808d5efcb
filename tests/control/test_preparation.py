"""What a configuration needs before it can be launched, and the defaults of `gateway up`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.load import settings_from_mapping
from gateway.config.settings import Engine, Settings
from gateway.control.machine import machine_from, require_gpus, with_listed_gpus
from gateway.control.preparation import (
    EMBEDDED,
    GIB,
    LaunchEnvironment,
    Surroundings,
    default_replicas,
    document_for_model,
    embedded_gpu_launch,
    overridden,
    prepare_engines,
    prepare_models,
    problems,
    refuse_blockers,
    uses_vllm,
)
from gateway.errors import ConfigurationError, EnvironmentProblem, ModelUnavailable
from gateway.setup.directories import Directories
from gateway.setup.facts import Gpu as FoundGpu
from gateway.setup.facts import MachineFacts
from gateway.workers.placement import Gpu, Machine
from tests.control.fakes import settings

SIMULATOR = {"default": {"command": ["{python}", "-m", "loadtest.servers.simulator"]}}
CPU_MACHINE = Machine(cpus=(0, 1), cores=(0, 1))


def facts(**changes: object) -> MachineFacts:
    """A machine in order: Linux, two cores, 16 GiB, no GPU."""
    plain = MachineFacts(
        system="Linux",
        machine="x86_64",
        python=(3, 11, 7),
        executable="/usr/bin/python3",
        has_ensurepip=True,
        has_headers=True,
        libc=("glibc", 2, 36),
        c_compiler="/usr/bin/cc",
        cxx_compiler="/usr/bin/c++",
        cpus=2,
        memory_available=16 * GIB,
        memory_limited=False,
        shm_total=8 * GIB,
        shm_free=8 * GIB,
        cache="/cache",
        cache_free=1000 * GIB,
        ports_busy=(),
        proxies=(),
        no_proxy=(),
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def found_gpu(index: int, *, used_gib: int = 0, pids: tuple[int, ...] = ()) -> FoundGpu:
    return FoundGpu(
        index=index,
        uuid=f"GPU-{index}{index}",
        name="H200",
        capability=(9, 0),
        total_bytes=140 * GIB,
        used_bytes=used_gib * GIB,
        other_pids=pids,
    )


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return Surroundings(
        environ={},
        directories=Directories(cache=tmp_path / "cache", state=tmp_path / "state"),
        report=lambda step: None,
    )


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (Engine().command, True),
        (["{python}", "-m", "vllm.entrypoints.cli.main", "serve", "{model}"], True),
        (["{python}", "-m", "loadtest.servers.simulator"], False),
        (["/opt/run-vllm.sh", "{model}"], False),
    ],
)
def test_an_environment_is_built_only_for_our_own_way_to_start_vllm(command: list[str], needed: bool) -> None:
    assert needed is uses_vllm(Engine(command=command))


def test_a_simulated_fleet_needs_no_engine_and_nothing_of_the_machine_but_a_python(around: Surroundings) -> None:
    """No compiler, no memory, no disk: the demo runs on a laptop, and its cache stays empty."""
    poor = facts(c_compiler=None, cxx_compiler=None, memory_available=GIB // 2, cache_free=0, system="Darwin")
    simulated = settings(engines=SIMULATOR)

    assert () == problems(simulated, poor)
    assert {"default": LaunchEnvironment(Path("/py"), "cpu")} == prepare_engines(
        simulated, poor, around, base_python="/py"
    )
    assert not around.directories.cache.exists()


def test_a_blocker_stops_before_anything_is_installed() -> None:
    """One sentence, the command that mends it, and how to see the rest."""
    found = problems(settings(), facts(c_compiler=None, memory_available=GIB))
    with pytest.raises(EnvironmentProblem, match=r"compiler.*more: gateway doctor.*apt-get install") as caught:
        refuse_blockers(found)

    assert 3 == caught.value.exit_code
    refuse_blockers(problems(settings(), facts()))


def test_findings_of_several_engines_are_not_repeated() -> None:
    two = settings(
        models={"a": {"model": "x/y"}, "b": {"model": "x/y", "engine": "other"}},
        engines={"default": {}, "other": {"variant": "cpu"}},
    )
    found = problems(two, facts(c_compiler=None))

    assert len(found) == len(set(found))


def test_a_model_folder_that_does_not_exist_stops_the_start(around: Surroundings, tmp_path: Path) -> None:
    """vLLM would ask the hub for it and fail minutes later."""
    missing = settings(models={"m": {"model": "./nothing-here"}})
    with pytest.raises(ModelUnavailable, match="nothing-here"):
        prepare_models(missing, {"default": LaunchEnvironment(Path("/py"), "cpu")}, around, folder=tmp_path)


def test_a_folder_becomes_absolute_and_a_hub_id_stays(around: Surroundings, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    both = settings(models={"a": {"model": "./model"}, "b": {"model": "org/name"}})
    prepared = prepare_models(both, {"default": LaunchEnvironment(Path("/py"), "cpu")}, around, folder=tmp_path)

    assert [str(tmp_path / "model"), "org/name"] == [model.model for model in prepared.models.values()]


def default(found: MachineFacts, machine: Machine, text: str | None = None, **options: object) -> Settings:
    document = document_for_model(
        text,
        name=options.get("name"),  # type: ignore[arg-type]
        replicas=options.get("replicas"),  # type: ignore[arg-type]
        engine_python=None,
        facts=found,
        machine=machine,
        folder=Path("/"),
    )
    return settings_from_mapping(document, Path("/"))


def test_without_a_model_the_embedded_one_is_served_modestly() -> None:
    """On a CPU one worker with a short context; on a GPU at most 8 GiB of it."""
    (on_cpu,) = default(facts(), CPU_MACHINE).models.items()
    gpus = (Gpu(index=0, total_bytes=140 * GIB, free_bytes=140 * GIB),)
    on_gpu = default(facts(gpus=(found_gpu(0),), nvidia_driver="580.1"), Machine(gpus=gpus))
    (gpu_model,) = on_gpu.models.values()

    assert ("SmolLM2-135M-Instruct", EMBEDDED, 1, 2048) == (
        on_cpu[0],
        on_cpu[1].model,
        on_cpu[1].replicas,
        on_cpu[1].launch.max_model_len,
    )
    assert gpu_model.launch.gpu_memory_utilization is not None
    assert 7 * GIB < gpu_model.launch.gpu_memory_utilization * 140 * GIB <= 8 * GIB
    assert gpu_model.launch.max_model_len is None


@pytest.mark.parametrize(
    ("cpus", "memory_gib", "replicas"), [(2, 64, 1), (4, 7, 1), (4, 8, 2), (64, 64, 2), (4, None, 1)]
)
def test_a_second_worker_only_where_enough_remains(cpus: int, memory_gib: int | None, replicas: int) -> None:
    """Two cores and 5 GiB beside the first; never on a GPU, never for a model of unknown size."""
    memory = None if memory_gib is None else memory_gib * GIB

    assert replicas == default_replicas(facts(cpus=cpus, memory_available=memory), embedded=True)
    assert 1 == default_replicas(facts(cpus=cpus, memory_available=memory), embedded=False)
    assert 1 == default_replicas(facts(cpus=cpus, memory_available=memory, gpus=(found_gpu(0),)), embedded=True)


def test_options_name_the_model_and_count_its_workers() -> None:
    (named,) = default(facts(), CPU_MACHINE, "org/model", name="chat", replicas=3).models.items()
    (plain,) = default(facts(), CPU_MACHINE, "org/model").models

    assert ("chat", "org/model", 3) == (named[0], named[1].model, named[1].replicas)
    assert "org/model" == plain


def test_a_small_gpu_is_left_to_the_engines_own_default() -> None:
    small = Machine(gpus=(Gpu(index=0, total_bytes=6 * GIB, free_bytes=6 * GIB),))
    taken = Machine(gpus=(Gpu(index=0, total_bytes=80 * GIB, free_bytes=1, occupied=True),))

    assert {} == embedded_gpu_launch(small)
    assert {} == embedded_gpu_launch(taken)


def test_gpus_that_others_use_are_marked_and_cuda_visible_devices_is_obeyed() -> None:
    """By memory or by process; by index or by UUID; after an unknown entry nothing counts, as CUDA has it."""
    found = facts(gpus=(found_gpu(0), found_gpu(1, used_gib=20), found_gpu(2, pids=(7,)), found_gpu(3)))
    seen: Callable[[str], list[int]] = lambda value: [  # noqa: E731 - one expression, used below only
        gpu.index for gpu in machine_from(found, {"CUDA_VISIBLE_DEVICES": value}).gpus
    ]

    assert [False, True, True, False] == [gpu.occupied for gpu in machine_from(found, {}).gpus]
    assert [3, 0] == seen("3,0")
    assert [2] == seen("GPU-22")
    assert [1] == seen("1,9,0")
    assert [] == seen("")
    with pytest.raises(EnvironmentProblem, match="MIG"):
        seen("MIG-abc")


def test_listed_gpus_and_an_engine_on_the_cpu_contradict_each_other() -> None:
    """Ignoring the list would start a large model on the CPU without a word."""
    listed = settings(models={"m": {"model": "x/y", "launch": {"gpus": [0]}}})
    with pytest.raises(ConfigurationError, match=r"models\.m\.launch\.gpus"):
        require_gpus(listed, {"default": LaunchEnvironment(Path("/py"), "cpu")})
    require_gpus(listed, {"default": LaunchEnvironment(Path("/py"), "cuda")})


def test_check_takes_the_listed_gpus_for_granted_and_says_so() -> None:
    """A file is checked on the machine where it is written, which need not be the one that serves."""
    listed = settings(models={"m": {"model": "x/y", "launch": {"gpus": [1, 0]}}})
    machine, missing = with_listed_gpus(Machine(gpus=(Gpu(index=0),)), listed)

    assert ((1,), [0, 1]) == (missing, [gpu.index for gpu in machine.gpus])


def test_options_win_over_the_file() -> None:
    """Those that were given; the rest is as the file says."""
    file = settings(listen={"host": "127.0.0.1", "port": 9000}, processes=2)
    untouched = overridden(file, None, None, None, None, None)
    changed = overridden(file, "::1", 9100, 9101, 3, None)

    assert file == untouched
    assert ("::1", 9100, 9101, 3) == (changed.listen.host, changed.listen.port, changed.admin.port, changed.processes)
    assert file.models == changed.models
