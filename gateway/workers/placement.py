"""Which worker gets which GPUs or cores: a pure decision on what the machine has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.config.settings import Model
from gateway.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Gpu:
    """
    One GPU as the driver reports it. `index` is in PCI bus order, as CUDA counts with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    `occupied`: another process holds its memory, so it is used only when the configuration lists it.
    """

    index: int
    uuid: str = ""
    name: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    occupied: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """
    What can be shared out: GPUs that CUDA_VISIBLE_DEVICES leaves us, logical CPUs, and of those one per physical core.
    """

    gpus: tuple[Gpu, ...] = ()
    cores: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """What one worker gets: GPU indices, a MIG slice, or cores."""

    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    mig_device: str = ""


def place(wanted: Sequence[tuple[str, Model, Literal["cpu", "cuda"]]], machine: Machine) -> dict[str, tuple[Slot, ...]]:
    """
    Slots of every model's replicas, by model name.

    GPUs and MIG slices that the configuration lists go to the replicas in order, a slice to one worker only. Otherwise
    each worker takes the least used free GPUs, the one with most free memory first.

    Two or more CPU workers get disjoint cores, because vLLM's own binding puts two workers on the same core of a small
    machine. One CPU worker alone is left to vLLM, and so are tensor parallel ones (they would need a set per rank) and
    more workers than there are CPUs.

    Raises:
        ConfigurationError: listed GPUs do not exist or do not suffice, or no free GPU is left.
    """
    load = {gpu.index: 0 for gpu in machine.gpus}
    cpu_workers = sum(model.launched for _, model, variant in wanted if variant == "cpu")
    core_sets = _split(machine.cores, cpu_workers) or _split(machine.cpus, cpu_workers)
    slots: dict[str, tuple[Slot, ...]] = {}
    slices: set[str] = set()
    for name, model, variant in wanted:
        if variant == "cuda" and model.launch.mig_devices is not None:
            slots[name] = _slices(name, model, model.launch.mig_devices, slices)
        elif variant == "cuda":
            slots[name] = tuple(Slot(gpus=_take(name, model, index, machine, load)) for index in range(model.launched))
        else:
            mine, core_sets = core_sets[: model.launched], core_sets[model.launched :]
            bind = model.launch.tensor_parallel_size == 1 and len(mine) == model.launched
            slots[name] = tuple(Slot(cpus=mine[index] if bind else ()) for index in range(model.launched))
    return slots


def _slices(name: str, model: Model, devices: Sequence[str], taken: set[str]) -> tuple[Slot, ...]:
    """A slice for each replica; adds them to `taken`."""
    mine = devices[: model.launched]
    again = [device for device in mine if device in taken or mine.count(device) > 1]
    if len(mine) < model.launched or again:
        what = f"{again[0]} would serve two workers" if again else f"{model.launched} workers, {len(mine)} slices"
        raise ConfigurationError(
            f"every worker needs a MIG slice of its own: {what}", key=f"models.{name}.launch.mig_devices"
        )
    taken.update(mine)
    return tuple(Slot(mig_device=device) for device in mine)


def _take(name: str, model: Model, replica: int, machine: Machine, load: dict[int, int]) -> tuple[int, ...]:
    """GPUs of one replica; counts them in `load`."""
    size = model.launch.tensor_parallel_size
    key = f"models.{name}.launch.gpus"
    present = [gpu.index for gpu in machine.gpus]
    if model.launch.gpus is not None:
        listed = model.launch.gpus
        missing = [index for index in listed if index not in load]
        if missing:
            raise ConfigurationError(f"GPU {missing[0]} was listed, but this machine has {present or 'none'}", key=key)
        if len(set(listed)) < size:
            raise ConfigurationError(
                f"tensor_parallel_size is {size}, but only {len(set(listed))} different GPUs are listed", key=key
            )
        chosen = _window(listed, replica * size, size)
    else:
        free = sorted(
            (gpu for gpu in machine.gpus if not gpu.occupied),
            key=lambda gpu: (load[gpu.index], -gpu.free_bytes, gpu.index),
        )
        if len(free) < size:
            raise ConfigurationError(
                f"a worker needs {size} free GPU(s), found {len(free)} of {len(present)} that no other process uses; "
                "end the other process, or list the GPUs here to share them",
                key=key,
            )
        chosen = tuple(sorted(gpu.index for gpu in free[:size]))
    for index in chosen:
        load[index] += 1
    return chosen


def _window(listed: Sequence[int], start: int, size: int) -> tuple[int, ...]:
    """`size` entries from `start` on, wrapping around the list."""
    return tuple(listed[(start + offset) % len(listed)] for offset in range(size))


def _split(cpus: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """
    Disjoint runs of equal length; none for one part, or when there are fewer CPUs than parts.

    From three on one CPU of each run stays free: the API server and the engine's scheduler run beside its threads.
    """
    if parts < 2 or len(cpus) < parts:
        return []
    each = len(cpus) // parts
    ordered = sorted(cpus)
    used = each - 1 if each > 2 else each
    return [tuple(ordered[part * each : part * each + used]) for part in range(parts)]
