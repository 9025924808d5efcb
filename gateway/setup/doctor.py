"""
From the facts of a machine to what is wrong with it: every finding is one sentence and the command that mends it.

Pure and standard library only. `gateway doctor` prints it all; `make serve` asks for the purpose `serve` first and
stops at a blocker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gateway.setup.builds import BUILDS, EngineBuild, driver_numbers, suitable_build
from gateway.setup.facts import MIB, Gpu, MachineFacts
from gateway.setup.sizes import LIGHT, MODEL, Size, megabytes

GIB = 1024 * MIB
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
# One CPU worker holds about 2.8 GB resident with the embedded model; below this it is killed while it starts.
MEMORY_NEEDED = 3 * GIB
MEMORY_WANTED = 5 * GIB
SHM_WANTED = 1 * GIB
# What a GPU shows as used with nobody on it (driver, display) stays below this.
GPU_IDLE = 512 * MIB


class Severity(StrEnum):
    """A blocker means that going on cannot succeed."""

    BLOCKER = "blocker"
    WARNING = "warning"


class Purpose(StrEnum):
    """What the machine is to do: build the light environment, run the simulator, serve a model, run all tests."""

    LIGHT = "light"
    DEMO = "demo"
    SERVE = "serve"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One thing that is wrong. `subject` is its stable name (`glibc`), `sentence` what was expected and what was found,
    `fix` a command to copy.
    """

    severity: Severity
    subject: str
    sentence: str
    fix: str


def findings(facts: MachineFacts, purpose: Purpose, variant: str = "auto") -> tuple[Finding, ...]:
    """
    Everything wrong with the machine for that purpose, in the order in which it should be mended.

    `variant` is `engines.NAME.variant`, or `own` when the operator brings the engine's environment.
    """
    found = [*_interpreter(facts), *_proxy(facts)]
    if purpose is not Purpose.LIGHT:
        found += _ports(facts)
    if purpose in (Purpose.LIGHT, Purpose.DEMO):
        found += _disk(facts, (LIGHT,) if purpose is Purpose.LIGHT else ())
        return tuple(found)
    build = None if variant == "own" else suitable_build(variant, facts)
    found += _platform(facts, build)
    if facts.system == "Linux":
        found += _compiler(facts, own=build is None)
        found += _nvidia(facts, build, variant)
        needed: list[Size] = []
        if build is not None and not facts.engine_built:
            needed.append(build.size)
        if not facts.model_built:
            needed.append(MODEL)
        found += _disk(facts, needed)
        found += _memory(facts, on_cpu=build is None or build.variant == "cpu")
        found += _shared_memory(facts)
    return tuple(found)


def doctor_report(found: Iterable[Finding], passed: Iterable[str] = ()) -> str:
    """For the terminal: what is in order, then the warnings, then what blocks, each with its command."""
    found = list(found)
    lines = [f"  ok       {what}" for what in passed]
    for severity in (Severity.WARNING, Severity.BLOCKER):
        for one in found:
            if one.severity is severity:
                lines += [f"  {severity:<8} {one.sentence}", f"           to mend it: {one.fix}"]
    return "\n".join(lines)


def checks_passed(facts: MachineFacts, purpose: Purpose, variant: str = "auto") -> tuple[str, ...]:
    """One line for each subject of `findings` that nothing was found about, with what was seen."""
    bad = {one.subject for one in findings(facts, purpose, variant)}
    seen = {
        "python": f"Python {'.'.join(map(str, facts.python))}",
        "ports": "" if purpose is Purpose.LIGHT else "ports are free",
        "proxy": "no proxy stands between the gateway and its workers",
        "disk": f"{megabytes(facts.cache_free)} free at {facts.cache}" if facts.cache_free is not None else "",
    }
    if purpose in (Purpose.SERVE, Purpose.TEST):
        build = None if variant == "own" else suitable_build(variant, facts)
        seen |= {
            "glibc": " ".join((facts.libc[0], ".".join(map(str, facts.libc[1:])))),
            "compiler": f"C++ compiler {facts.cxx_compiler} and Python headers",
            "memory": f"{facts.memory_available / GIB:.1f} GiB of memory available" if facts.memory_available else "",
            "shm": f"/dev/shm of {facts.shm_total / GIB:.1f} GiB" if facts.shm_total else "",
            "gpu": f"{len(facts.gpus)} NVIDIA GPU(s), driver {facts.nvidia_driver}" if facts.gpus else "",
            "engine": f"engine: {build.title}" if build else "engine: your own environment",
        }
    return tuple(text for subject, text in seen.items() if text and subject not in bad)


def _interpreter(facts: MachineFacts) -> Iterable[Finding]:
    if not OLDEST_PYTHON <= facts.python[:2] <= NEWEST_PYTHON:
        yield Finding(
            Severity.BLOCKER,
            "python",
            f"Python 3.11 to 3.14 is needed, {facts.executable} is {'.'.join(map(str, facts.python))}",
            "make PYTHON=/path/to/python3.12 (sudo apt-get install python3.12 python3.12-venv)",
        )
    if not facts.has_ensurepip:
        package = f"python{facts.python[0]}.{facts.python[1]}-venv"
        yield Finding(
            Severity.BLOCKER,
            "ensurepip",
            f"{facts.executable} cannot create virtual environments: its module ensurepip is missing",
            f"sudo apt-get install {package}",
        )


def _platform(facts: MachineFacts, build: EngineBuild | None) -> Iterable[Finding]:
    if facts.system != "Linux":
        yield Finding(
            Severity.BLOCKER,
            "system",
            f"vLLM is installed on Linux only, this is {facts.system}",
            "make demo (the gateway over simulated workers), or run on Linux",
        )
        return
    if build is not None and facts.machine not in ("x86_64", "aarch64"):
        yield Finding(
            Severity.BLOCKER,
            "machine",
            f"builds of vLLM exist for x86_64 and aarch64, this machine is {facts.machine}",
            "make serve ENGINE_PYTHON=/path/to/your/vllm/bin/python",
        )
    if build is None:
        return
    name, major, minor = facts.libc
    oldest = build.glibc_aarch64 if facts.machine == "aarch64" else build.glibc
    if name != "glibc" or (major, minor) < oldest:
        wanted = ".".join(map(str, oldest))
        found = f"{name} {major}.{minor}" if name else "another C library"
        yield Finding(
            Severity.BLOCKER,
            "glibc",
            f"{build.title} needs glibc {wanted} or newer (manylinux_{wanted.replace('.', '_')}), found {found}",
            "use a newer distribution (Debian 12, Ubuntu 22.04, RHEL 9 or later) or a container of one",
        )
    if build.newest_python < facts.python[:2] <= NEWEST_PYTHON:
        newest, here = (".".join(map(str, one)) for one in (build.newest_python, facts.python[:2]))
        yield Finding(
            Severity.BLOCKER,
            "engine_python",
            f"{build.title} exists for Python up to {newest}, {facts.executable} is {here}",
            f"make serve PYTHON=python{newest}",
        )


def _compiler(facts: MachineFacts, *, own: bool) -> Iterable[Finding]:
    version = f"{facts.python[0]}.{facts.python[1]}"
    if facts.c_compiler is None or facts.cxx_compiler is None:
        missing = "C" if facts.c_compiler is None else "C++"
        yield Finding(
            Severity.BLOCKER,
            "compiler",
            f"vLLM compiles kernels while it starts (Triton, torch.compile) and no {missing} compiler was found",
            "sudo apt-get install build-essential",
        )
    if not facts.has_headers:
        yield Finding(
            # The operator's own environment may be of another Python, whose headers we did not look for.
            Severity.WARNING if own else Severity.BLOCKER,
            "headers",
            f"vLLM compiles kernels while it starts and Python.h of {facts.executable} was not found",
            f"sudo apt-get install python{version}-dev",
        )


def _nvidia(facts: MachineFacts, build: EngineBuild | None, variant: str) -> Iterable[Finding]:
    if facts.nvidia_devices and facts.nvidia_driver is None:
        yield Finding(
            Severity.WARNING,
            "gpu",
            "an NVIDIA device is present but nvidia-smi does not answer, so the GPU cannot be used",
            "sudo apt-get install nvidia-driver (in a container: docker run --gpus all)",
        )
    if variant == "cuda" and not facts.gpus:
        yield Finding(
            Severity.BLOCKER,
            "gpu",
            "the CUDA build of vLLM is asked for and no NVIDIA GPU was found",
            "set variant: cpu for the engine in the configuration file, or install the NVIDIA driver",
        )
    if facts.gpus and facts.nvidia_driver and (build is None or build.variant == "cpu") and variant in ("auto", "cuda"):
        oldest = min(one.driver for one in BUILDS if one.driver)
        if driver_numbers(facts.nvidia_driver) < (oldest, 0):
            yield Finding(
                Severity.BLOCKER if variant == "cuda" else Severity.WARNING,
                "driver",
                f"the oldest pinned CUDA needs NVIDIA driver {oldest} or newer, found {facts.nvidia_driver}",
                f"sudo apt-get install nvidia-driver-{oldest} (any newer is better)",
            )
    if build is not None and build.variant == "cuda":
        for gpu in facts.gpus:
            if gpu.capability < build.capability:
                wanted, found = (".".join(map(str, one)) for one in (build.capability, gpu.capability))
                yield Finding(
                    Severity.WARNING
                    if any(one.capability >= build.capability for one in facts.gpus)
                    else Severity.BLOCKER,
                    "capability",
                    f"{build.title} needs compute capability {wanted}, GPU {gpu.index} ({gpu.name}) has {found}",
                    f"list other GPUs under models.NAME.launch.gpus, without {gpu.index}, or set engine variant: cpu",
                )
    taken = [gpu for gpu in facts.gpus if _used_by_others(gpu)]
    if taken and (build is None or build.variant == "cuda"):
        free = len(facts.gpus) - len(taken)
        names = ", ".join(
            f"GPU {gpu.index} ({gpu.used_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB"
            + (f", process {gpu.other_pids[0]}" if gpu.other_pids else "")
            + ")"
            for gpu in taken
        )
        yield Finding(
            Severity.WARNING if free else Severity.BLOCKER,
            "gpu_used",
            f"others hold memory on {names}; {'these are' if len(taken) > 1 else 'it is'} left alone",
            "nvidia-smi (who it is), or list the GPU under models.NAME.launch.gpus to share it",
        )


def _used_by_others(gpu: Gpu) -> bool:
    return bool(gpu.other_pids) or gpu.used_bytes > GPU_IDLE


def _disk(facts: MachineFacts, needed: Iterable[Size]) -> Iterable[Finding]:
    # Built and downloaded files lie side by side for a while, and pip keeps a copy of each download.
    size = sum(one.disk + one.download for one in needed)
    if facts.cache_free is not None and size and facts.cache_free < size:
        yield Finding(
            Severity.BLOCKER,
            "disk",
            f"{megabytes(size)} are needed at {facts.cache}, {megabytes(facts.cache_free)} are free",
            "export GATEWAY_CACHE_DIR=/a/larger/disk/vllm-gateway (see what is free: df -h)",
        )


def _memory(facts: MachineFacts, *, on_cpu: bool) -> Iterable[Finding]:
    if facts.memory_available is None or facts.memory_available >= MEMORY_WANTED:
        return
    limit = " below this container's limit" if facts.memory_limited else ""
    blocks = facts.memory_available < MEMORY_NEEDED
    what = "one CPU worker with the embedded model" if on_cpu else "loading a model"
    yield Finding(
        Severity.BLOCKER if blocks else Severity.WARNING,
        "memory",
        f"{what} needs {(MEMORY_NEEDED if blocks else MEMORY_WANTED) // GIB} GiB of available memory"
        f"{'' if blocks else ' to run well'}, {facts.memory_available / GIB:.1f} GiB are left{limit}",
        "raise the container's limit (docker run --memory 8g)"
        if facts.memory_limited
        else "ps aux --sort=-rss | head (what uses it), then stop what is not needed",
    )


def _shared_memory(facts: MachineFacts) -> Iterable[Finding]:
    if facts.shm_total is None:
        return
    if facts.shm_total < SHM_WANTED:
        yield Finding(
            Severity.WARNING,
            "shm",
            f"vLLM's processes exchange data in /dev/shm, which is only {facts.shm_total / MIB:.0f} MiB large",
            "docker run --shm-size=2g, or sudo mount -o remount,size=2g /dev/shm",
        )
    elif facts.shm_free is not None and facts.shm_free < SHM_WANTED // 4:
        yield Finding(
            Severity.WARNING,
            "shm",
            f"/dev/shm has {facts.shm_free / MIB:.0f} MiB left; crashed programs leave files there",
            "ls -la /dev/shm, then remove what no running program uses",
        )


def _ports(facts: MachineFacts) -> Iterable[Finding]:
    for host, port in facts.ports_busy:
        yield Finding(
            Severity.BLOCKER,
            "ports",
            f"port {port} on {host} is in use",
            f"ss -ltnp 'sport = :{port}' (who it is), or take another: export GATEWAY_PORT= or GATEWAY_ADMIN_PORT= "
            "(in a file: listen.port, admin.port)",
        )


def _proxy(facts: MachineFacts) -> Iterable[Finding]:
    loopback = {"*", "localhost", "127.0.0.1", "127.0.0.0/8"}
    if facts.proxies and not loopback & set(facts.no_proxy):
        names = ", ".join(name.upper() for name in facts.proxies)
        yield Finding(
            Severity.WARNING,
            "proxy",
            f"{names} set without NO_PROXY for this machine: clients would ask the proxy for the gateway",
            "export NO_PROXY=localhost,127.0.0.1,::1",
        )
