"""What workers may share out on this machine: from the doctor's facts to `placement.Machine`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from gateway.config.settings import Settings
from gateway.errors import ConfigurationError, EnvironmentProblem
from gateway.setup.doctor import GPU_IDLE
from gateway.setup.facts import MachineFacts
from gateway.workers.placement import Gpu, Machine
from gateway.workers.platform import one_per_core
from gateway.workers.spec import EngineEnvironmentLike


def machine_from(facts: MachineFacts, environ: Mapping[str, str]) -> Machine:
    """
    The GPUs that CUDA_VISIBLE_DEVICES leaves us, and the CPUs we may run on.

    A GPU on which others compute or hold memory is `occupied`: it is used only where the configuration lists it.

    Raises EnvironmentProblem for a CUDA_VISIBLE_DEVICES that cannot be shared out.
    """
    gpus = [
        Gpu(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            total_bytes=gpu.total_bytes,
            free_bytes=max(0, gpu.total_bytes - gpu.used_bytes),
            occupied=bool(gpu.other_pids) or gpu.used_bytes > GPU_IDLE,
        )
        for gpu in facts.gpus
    ]
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = tuple(sorted(affinity(0))) if affinity is not None else tuple(range(facts.cpus))
    return Machine(gpus=visible(gpus, environ.get("CUDA_VISIBLE_DEVICES")), cores=one_per_core(cpus), cpus=cpus)


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
                f"CUDA_VISIBLE_DEVICES names a MIG slice ({entry}), and only whole GPUs are shared out",
                fix="set CUDA_VISIBLE_DEVICES in models.NAME.launch.env to it, one worker per slice",
            )
        found = [
            gpu for gpu in gpus if entry == str(gpu.index) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))
        ]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen)


def with_listed_gpus(machine: Machine, settings: Settings) -> tuple[Machine, tuple[int, ...]]:
    """
    The machine as the configuration takes it to be, for `gateway check`: GPUs that it lists and that are not here are
    added. Their indices come second.
    """
    present = {gpu.index for gpu in machine.gpus}
    listed = {index for model in settings.models.values() if model.launched for index in model.launch.gpus or ()}
    missing = tuple(sorted(listed - present))
    return dataclasses.replace(machine, gpus=(*machine.gpus, *(Gpu(index=index) for index in missing))), missing


def require_gpus(settings: Settings, engines: Mapping[str, EngineEnvironmentLike]) -> None:
    """Raise ConfigurationError for a model whose GPUs are listed and whose engine computes on the CPU."""
    for name, model in settings.models.items():
        if model.launched and model.launch.gpus is not None and engines[model.engine].variant == "cpu":
            raise ConfigurationError(
                f"GPUs are listed, but the engine {model.engine!r} computes on the CPU of this machine; "
                "remove the key, or see `gateway doctor` for why no GPU is used",
                key=f"models.{name}.launch.gpus",
            )
