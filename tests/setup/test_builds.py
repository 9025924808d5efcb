"""Which pinned build of vLLM a machine gets."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest

from gateway.setup.builds import BUILDS, CPU, CUDA_12, CUDA_13, EngineBuild, driver_numbers, suitable_build
from gateway.setup.facts import MachineFacts
from tests.setup.machine import H200, gpu_machine, machine

PASCAL = replace(H200, index=1, capability=(6, 1))


@pytest.mark.parametrize(
    ("variant", "facts", "expected"),
    [
        ("auto", machine(), CPU),
        ("auto", gpu_machine(), CUDA_13),
        ("auto", gpu_machine(driver="580.00"), CUDA_13),
        ("auto", gpu_machine(driver="579.99"), CUDA_12),
        ("auto", gpu_machine(driver="525.60.13"), CUDA_12),
        ("auto", gpu_machine(driver="470.57.02"), CPU),
        ("auto", gpu_machine(driver="[N/A]"), CPU),
        ("auto", gpu_machine(PASCAL), CPU),
        ("auto", gpu_machine(PASCAL, H200), CUDA_13),
        ("cpu", gpu_machine(), CPU),
        ("cuda", gpu_machine(), CUDA_13),
        ("cuda", gpu_machine(PASCAL), CUDA_13),
        ("cuda", gpu_machine(driver="470.57.02"), None),
        ("cuda", machine(), None),
    ],
)
def test_the_driver_and_the_gpus_choose_the_build(
    variant: str, facts: MachineFacts, expected: EngineBuild | None
) -> None:
    """The newest proven build that the driver can run; what is asked for explicitly is never replaced."""
    assert expected == suitable_build(variant, facts)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_every_build_has_a_lock_that_pins_it_with_hashes_and_no_address(build: EngineBuild) -> None:
    """Where the files come from is the machine's pip configuration, never the lock."""
    lock = (files("gateway.setup") / "locks" / build.lock).read_text(encoding="utf-8")

    requirements = [line for line in lock.splitlines() if not line.startswith((" ", "#"))]
    assert f"{build.distribution}=={build.version} \\" in requirements
    assert all("==" in line and line.endswith("\\") for line in requirements)
    assert "://" not in lock
    assert "--index" not in lock
    assert {"gguf", "accelerate"} <= {line.split("==")[0] for line in requirements}


def test_the_cpu_lock_leaves_torch_and_its_companions_out() -> None:
    """A torchvision from another torch breaks transformers at import (operator torchvision::nms does not exist)."""
    lock = (files("gateway.setup") / "locks" / CPU.lock).read_text(encoding="utf-8")

    names = {line.split("==")[0] for line in lock.splitlines() if not line.startswith(" ")}
    assert not names & {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
    assert not [name for name in names if name.startswith(("nvidia-", "cuda-"))]


def test_a_third_partys_build_and_an_unproven_one_say_so() -> None:
    """The title is what the operator reads before gigabytes are downloaded."""
    assert "third party" in CPU.title
    assert "third party" not in CUDA_13.title
    assert "not seen working" in CUDA_12.title


@pytest.mark.parametrize(
    ("text", "numbers"), [("580.65.06", (580, 65)), ("580", (580, 0)), (None, (0, 0)), ("[N/A]", (0, 0)), ("", (0, 0))]
)
def test_driver_versions_are_compared_as_numbers(text: str | None, numbers: tuple[int, int]) -> None:
    """What is no version is older than everything."""
    assert numbers == driver_numbers(text)
