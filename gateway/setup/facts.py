"""
What the doctor looks at, gathered once from the running machine.

Standard library only. A fact that cannot be found out is None or empty, which no finding is made from; gathering never
fails and changes nothing.
"""

from __future__ import annotations

import csv
import errno
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class Gpu:
    """
    One NVIDIA GPU. `index` follows the PCI bus order; `other_pids` are the processes that compute on it (those of
    another container cannot be seen; `used_bytes` counts them).
    """

    index: int
    uuid: str
    name: str
    capability: tuple[int, int]
    total_bytes: int
    used_bytes: int
    other_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """
    The machine as far as set-up and serving depend on it. Sizes in bytes.

    `memory_available` counts the cgroup's limit, and `memory_limited` tells that this limit was the smaller number.
    `cache` is the folder things are built in (or will be); `cache_free` the room on its file system. `ports_busy` are
    those of the asked ones that cannot be bound. `proxies` are the names of the proxy variables that are set.
    `engine_built` and `model_built`: nothing more to download or to store.
    """

    system: str
    machine: str
    python: tuple[int, int, int]
    executable: str
    has_ensurepip: bool
    has_headers: bool
    libc: tuple[str, int, int]
    c_compiler: str | None
    cxx_compiler: str | None
    cpus: int
    memory_available: int | None
    memory_limited: bool
    shm_total: int | None
    shm_free: int | None
    cache: str
    cache_free: int | None
    ports_busy: tuple[tuple[str, int], ...]
    proxies: tuple[str, ...]
    no_proxy: tuple[str, ...]
    nvidia_devices: int = 0
    nvidia_driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    engine_built: bool = False
    model_built: bool = False


def gather_facts(
    environ: Mapping[str, str],
    *,
    cache: Path,
    ports: Iterable[tuple[str, int]],
    engine_built: bool = False,
    model_built: bool = False,
) -> MachineFacts:
    """
    Look at this machine; a fraction of a second, some more where nvidia-smi is slow.

    Args:
        environ: PATH, CC, CXX and the proxy variables are read from it.
        cache: Where engines will be built; it need not exist.
        ports: (host, port) pairs that will be bound.
        engine_built: The engine environment that will be used is finished.
        model_built: The embedded model is converted, or another one is served.
    """
    libc, libc_version = platform.libc_ver()
    major, minor = _numbers(libc_version)
    driver, gpus = nvidia_gpus(environ)
    available, limited = memory_available()
    shm = _file_system(Path("/dev/shm"))
    disk = _file_system(cache)
    lowered = {name.lower(): value for name, value in environ.items()}
    return MachineFacts(
        system=platform.system(),
        machine=platform.machine(),
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        executable=sys.executable,
        has_ensurepip=importlib.util.find_spec("ensurepip") is not None,
        has_headers=(Path(sysconfig.get_path("include")) / "Python.h").exists(),
        libc=(libc, major, minor),
        c_compiler=_program(environ, "CC", ("gcc", "cc", "clang")),
        cxx_compiler=_program(environ, "CXX", ("g++", "c++", "clang++")),
        cpus=cpus(),
        memory_available=available,
        memory_limited=limited,
        shm_total=shm[0] if shm else None,
        shm_free=shm[1] if shm else None,
        cache=str(cache),
        cache_free=disk[1] if disk else None,
        ports_busy=tuple((host, port) for host, port in ports if not _can_bind(host, port)),
        proxies=tuple(name for name in PROXY_VARIABLES if lowered.get(name)),
        no_proxy=tuple(part.strip() for part in lowered.get("no_proxy", "").split(",") if part.strip()),
        nvidia_devices=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        nvidia_driver=driver,
        gpus=gpus,
        engine_built=engine_built,
        model_built=model_built,
    )


def cpus() -> int:
    """Processors this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def memory_available(proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, bool]:
    """
    (bytes that can still be used, whether a cgroup's limit is what bounds them).

    The kernel's MemAvailable, or what is left below the limit of our cgroup or of any above it (version 1 or 2),
    whichever is less; file cache of the cgroup counts as free, for the kernel drops it when needed.
    """
    free: int | None = None
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    left = [room for folder in _memory_cgroups(proc, cgroup_root) if (room := _cgroup_room(folder)) is not None]
    if left and (free is None or min(left) < free):
        return max(0, min(left)), True
    return free, False


def _memory_cgroups(proc: Path, root: Path) -> list[Path]:
    """Our memory cgroup's folder and those above it, up to the root."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            base = root / "memory" if controllers else root
            folder = base / path.lstrip("/")
            # Inside a container the path may be the host's and not exist below the container's own mount.
            chain = [folder, *folder.parents] if folder.exists() else [base]
            return [one for one in chain if one.is_relative_to(base)]
    return []


def _cgroup_room(folder: Path) -> int | None:
    """Bytes left below the limit of one cgroup; None where it has none."""
    for limit_file, usage_file, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _text(folder / limit_file).strip(), _text(folder / usage_file).strip()
        # Version 1 says "no limit" with a number near 2**63.
        if limit.isdigit() and usage.isdigit() and int(limit) < 2**60:
            cached = [
                int(line.split()[1])
                for line in _text(folder / "memory.stat").splitlines()
                if line.split()[0] == cache_key
            ]
            return int(limit) - int(usage) + sum(cached)
    return None


def nvidia_gpus(environ: Mapping[str, str]) -> tuple[str | None, tuple[Gpu, ...]]:
    """(driver version, GPUs) as nvidia-smi tells them; (None, ()) without it or when it fails."""
    smi = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if smi is None:
        return None, ()
    fields = "index,uuid,name,compute_cap,memory.total,memory.used,driver_version"
    rows = _query([smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
    users = _query([smi, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits"])
    gpus: list[Gpu] = []
    driver = None
    for row in rows:
        if len(row) != len(fields.split(",")) or not row[0].isdigit():
            continue
        driver = row[6]
        gpus.append(
            Gpu(
                index=int(row[0]),
                uuid=row[1],
                name=row[2],
                capability=_numbers(row[3]),
                total_bytes=int(row[4]) * MIB if row[4].isdigit() else 0,
                used_bytes=int(row[5]) * MIB if row[5].isdigit() else 0,
                other_pids=tuple(int(pid) for uuid, pid, *_ in users if uuid == row[1] and pid.isdigit()),
            )
        )
    return driver, tuple(gpus)


def _query(command: list[str]) -> list[list[str]]:
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [row for row in csv.reader(printed.splitlines(), skipinitialspace=True) if len(row) > 1]


def _numbers(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return int(major) if major.isdigit() else 0, int(minor) if minor.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _program(environ: Mapping[str, str], variable: str, names: tuple[str, ...]) -> str | None:
    """The compiler the operator names, else the first that exists; None when there is none."""
    chosen = environ.get(variable, "").split()
    found = (shutil.which(name, path=environ.get("PATH")) for name in ((chosen[0],) if chosen else names))
    return next((path for path in found if path), None)


def _file_system(path: Path) -> tuple[int, int] | None:
    """(total, free for us) bytes of the file system that `path` is or would be on."""
    for folder in (path, *path.parents):
        if folder.exists():
            usage = shutil.disk_usage(folder)
            return usage.total, usage.free
    return None


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            # Anything else (an address this machine does not have, a privileged port) binding will say itself.
            return problem.errno != errno.EADDRINUSE
        return True
