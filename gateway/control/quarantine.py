"""GPUs that are out of use: what `gateway status` says of each, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from gateway.workers.gpus import Quarantine


class Quarantines(Protocol):
    """Who shares the GPUs out: `GpuPool`."""

    @property
    def quarantined(self) -> Mapping[int, Quarantine]: ...

    def forgive(self, index: int) -> None:
        """Use it again."""
        ...


class QuarantinedGpu(msgspec.Struct, frozen=True):
    """One GPU that no worker is started on. `gpu` is its index, `reason` and `fix` are for people."""

    gpu: int
    reason: str
    fix: str


def quarantined_gpus(gpus: Quarantines | None) -> tuple[QuarantinedGpu, ...]:
    """In the order of their indices; none where no GPUs are shared out."""
    found = sorted(gpus.quarantined.items()) if gpus is not None else []
    return tuple(QuarantinedGpu(index, why.reason, _fix(index, why)) for index, why in found)


def _fix(index: int, why: Quarantine) -> str:
    command = f"`gateway gpus return {index}`"
    if why.free_again_below is not None:
        return f"it is used again by itself once that memory is free, or at once after {command}"
    return f"when it is mended, {command} has it used again"
