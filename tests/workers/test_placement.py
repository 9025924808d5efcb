"""GPUs and cores shared out."""

from __future__ import annotations

from typing import Literal

import pytest

from gateway.config.settings import Launch, Model
from gateway.errors import ConfigurationError
from gateway.workers.placement import Gpu, Machine, Slot, place

GIB = 1024**3


def model(replicas: int = 1, tp: int = 1, gpus: list[int] | None = None) -> Model:
    return Model(model="m", replicas=replicas, launch=Launch(tensor_parallel_size=tp, gpus=gpus))


def placed(
    wanted: dict[str, Model], machine: Machine, variant: Literal["cpu", "cuda"] = "cuda"
) -> dict[str, list[Slot]]:
    return {name: list(slots) for name, slots in place([(n, m, variant) for n, m in wanted.items()], machine).items()}


def gpus(count: int, occupied: frozenset[int] = frozenset()) -> Machine:
    return Machine(
        gpus=tuple(
            Gpu(index, total_bytes=80 * GIB, free_bytes=(80 - index) * GIB, occupied=index in occupied)
            for index in range(count)
        )
    )


def test_the_freest_gpu_is_taken_first() -> None:
    """Free memory decides, then the index."""
    machine = Machine(gpus=(Gpu(0, free_bytes=10), Gpu(1, free_bytes=70), Gpu(2, free_bytes=70)))
    assert {"m": [Slot(gpus=(1,))]} == placed({"m": model()}, machine)


def test_replicas_spread_before_they_share() -> None:
    """Over all models together; a GPU gets its second worker only when each has one."""
    found = placed({"a": model(replicas=3), "b": model(replicas=2)}, gpus(4))
    assert {"a": [Slot((0,)), Slot((1,)), Slot((2,))], "b": [Slot((3,)), Slot((0,))]} == found


def test_a_tensor_parallel_worker_gets_different_gpus() -> None:
    """Two workers of two on four GPUs."""
    assert {"m": [Slot((0, 1)), Slot((2, 3))]} == placed({"m": model(replicas=2, tp=2)}, gpus(4))


def test_an_occupied_gpu_is_used_only_when_listed() -> None:
    """Somebody else's work is not disturbed by default."""
    machine = gpus(2, frozenset({0}))
    assert {"m": [Slot((1,)), Slot((1,))]} == placed({"m": model(replicas=2)}, machine)
    assert {"m": [Slot((0,))]} == placed({"m": model(gpus=[0])}, machine)
    with pytest.raises(ConfigurationError, match="found 0 of 2"):
        placed({"m": model()}, gpus(2, frozenset({0, 1})))


def test_listed_gpus_go_to_the_replicas_in_order() -> None:
    """And around again when there are more replicas."""
    found = placed({"m": model(replicas=3, gpus=[3, 1])}, gpus(4))
    assert {"m": [Slot((3,)), Slot((1,)), Slot((3,))]} == found
    assert {"m": [Slot((3, 1)), Slot((0, 2))]} == placed({"m": model(replicas=2, tp=2, gpus=[3, 1, 0, 2])}, gpus(4))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (model(gpus=[4]), "GPU 4 was listed, but this machine has"),
        (model(tp=2, gpus=[1]), "only 1 different GPUs are listed"),
        (model(tp=2, gpus=[1, 1]), "only 1 different GPUs are listed"),
        (model(tp=8), "needs 8 free"),
    ],
)
def test_what_cannot_be_placed_names_its_key(wanted: Model, message: str) -> None:
    """The key is that of the model."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        placed({"m": wanted}, gpus(4))
    assert "models.m.launch.gpus" == caught.value.key


def test_a_machine_without_gpus_says_so() -> None:
    """Not an index error."""
    with pytest.raises(ConfigurationError, match="found 0 of 0"):
        placed({"m": model()}, Machine())
    with pytest.raises(ConfigurationError, match="this machine has none"):
        placed({"m": model(gpus=[0])}, Machine())


@pytest.mark.parametrize(
    ("cpus", "replicas", "expected"),
    [
        (2, 2, [(0,), (1,)]),
        (4, 2, [(0, 1), (2, 3)]),
        (8, 2, [(0, 1, 2), (4, 5, 6)]),
        (5, 2, [(0, 1), (2, 3)]),
        (2, 1, [()]),
        (2, 3, [(), (), ()]),
    ],
)
def test_cpu_workers_get_disjoint_cores(cpus: int, replicas: int, expected: list[tuple[int, ...]]) -> None:
    """One alone and too many are left to vLLM; from three cores each one stays free for the rest of the worker."""
    found = placed({"m": model(replicas)}, Machine(cpus=tuple(range(cpus))), "cpu")
    assert expected == [slot.cpus for slot in found["m"]]


def test_cores_are_disjoint_over_models() -> None:
    """Two models with one worker each share the machine as well."""
    found = placed({"a": model(), "b": model()}, Machine(cpus=(0, 1)), "cpu")
    assert {"a": [Slot(cpus=(0,))], "b": [Slot(cpus=(1,))]} == found


def test_one_thread_per_core_where_there_are_enough_cores() -> None:
    """Two workers must not meet on the two threads of one core."""
    machine = Machine(cores=(0, 1), cpus=(0, 1, 2, 3))
    assert [(0,), (1,)] == [slot.cpus for slot in placed({"m": model(2)}, machine, "cpu")["m"]]
    assert [(0,), (1,), (2,)] == [slot.cpus for slot in placed({"m": model(3)}, machine, "cpu")["m"]]


def test_a_tensor_parallel_cpu_worker_is_not_bound() -> None:
    """It would need one set per rank."""
    found = placed({"m": model(2, tp=2)}, Machine(cpus=(0, 1, 2, 3)), "cpu")
    assert [Slot(), Slot()] == found["m"]
