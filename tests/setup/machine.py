"""A machine with nothing wrong with it, to be spoilt one fact at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.setup.facts import Gpu, MachineFacts

GIB = 1024**3

HEALTHY = MachineFacts(
    system="Linux",
    machine="x86_64",
    python=(3, 12, 4),
    executable="/usr/bin/python3",
    has_ensurepip=True,
    has_headers=True,
    libc=("glibc", 2, 36),
    c_compiler="/usr/bin/gcc",
    cxx_compiler="/usr/bin/g++",
    cpus=8,
    memory_available=32 * GIB,
    memory_limited=False,
    shm_total=16 * GIB,
    shm_free=16 * GIB,
    cache="/home/u/.cache/vllm-gateway",
    cache_free=200 * GIB,
    ports_busy=(),
    proxies=(),
    no_proxy=(),
)

H200 = Gpu(0, "GPU-0", "NVIDIA H200", (9, 0), 140 * GIB, 0)


def machine(**changes: Any) -> MachineFacts:
    """The healthy machine without a GPU, with these facts changed."""
    return replace(HEALTHY, **changes)


def gpu_machine(*gpus: Gpu, driver: str = "580.65.06", **changes: Any) -> MachineFacts:
    """The healthy machine with these GPUs (one idle H200 when none are given)."""
    gpus = gpus or (H200,)
    return machine(nvidia_devices=len(gpus), nvidia_driver=driver, gpus=gpus, **changes)
