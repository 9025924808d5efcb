"""What is read off a machine, from faked /proc, cgroups, programs and sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gateway.setup.facts import Gpu, gather_facts, memory_available, nvidia_gpus

MIB = 1024**2
GIB = 1024**3


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with 8 GiB available, in the cgroup /a/b of version 2."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(
        "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n", encoding="utf-8"
    )
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/a/b\n", encoding="utf-8")
    return tmp_path / "proc"


def cgroup(folder: Path, limit: str, usage: int, inactive: int = 0) -> None:
    """A version 2 memory cgroup."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n", encoding="utf-8")
    (folder / "memory.current").write_text(f"{usage}\n", encoding="utf-8")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n", encoding="utf-8")


def test_without_a_limit_the_kernels_available_memory_counts(proc: Path, tmp_path: Path) -> None:
    """`max` is no limit."""
    cgroup(tmp_path / "cg" / "a" / "b", "max", 5)

    assert memory_available(proc, tmp_path / "cg") == (8 * GIB, False)


def test_a_cgroups_limit_counts_less_what_is_used_and_cannot_be_dropped(proc: Path, tmp_path: Path) -> None:
    """Its file cache is free memory."""
    cgroup(tmp_path / "cg" / "a" / "b", str(4 * GIB), 3 * GIB, inactive=GIB)

    assert memory_available(proc, tmp_path / "cg") == (2 * GIB, True)


def test_the_limit_of_a_cgroup_above_ours_counts_too(proc: Path, tmp_path: Path) -> None:
    """A pod's limit bounds its containers."""
    cgroup(tmp_path / "cg" / "a", str(GIB), 0)
    cgroup(tmp_path / "cg" / "a" / "b", str(4 * GIB), 0)

    assert memory_available(proc, tmp_path / "cg") == (GIB, True)


def test_a_container_that_sees_only_its_own_cgroup_is_limited_by_it(proc: Path, tmp_path: Path) -> None:
    """The path in /proc is the host's; the mount starts at the container's own folder."""
    cgroup(tmp_path / "cg", str(GIB), 0)

    assert memory_available(proc, tmp_path / "cg") == (GIB, True)


def test_a_version_1_cgroup_counts(proc: Path, tmp_path: Path) -> None:
    """And its huge number for "no limit" does not."""
    (proc / "self" / "cgroup").write_text("5:cpu:/x\n4:memory:/x\n", encoding="utf-8")
    folder = tmp_path / "cg" / "memory" / "x"
    folder.mkdir(parents=True)
    (folder / "memory.usage_in_bytes").write_text("0\n", encoding="utf-8")
    (folder / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n", encoding="utf-8")

    limited = memory_available(proc, tmp_path / "cg")
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n", encoding="utf-8")

    assert limited == (2 * GIB, True)
    assert memory_available(proc, tmp_path / "cg") == (8 * GIB, False)


def test_what_cannot_be_found_out_is_none(tmp_path: Path) -> None:
    """No /proc: another system."""
    assert memory_available(tmp_path / "none", tmp_path / "none") == (None, False)


def test_nvidia_smi_tells_gpus_driver_and_who_uses_them(tmp_path: Path) -> None:
    """Rows it cannot tell ([N/A]) are zeros, not errors."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\ncase $1 in\n"
        '--query-gpu=*) echo "0, GPU-a, NVIDIA H200, 9.0, 143771, 512, 580.65.06"\n'
        '  echo "1, GPU-b, NVIDIA GB10, 12.1, [N/A], [N/A], 580.65.06" ;;\n'
        '--query-compute-apps=*) echo "GPU-a, 4711" ;;\nesac\n',
        encoding="utf-8",
    )
    smi.chmod(0o755)

    driver, gpus = nvidia_gpus({"PATH": f"{tmp_path}:{os.environ['PATH']}"})

    assert driver == "580.65.06"
    assert gpus == (
        Gpu(0, "GPU-a", "NVIDIA H200", (9, 0), 143771 * MIB, 512 * MIB, (4711,)),
        Gpu(1, "GPU-b", "NVIDIA GB10", (12, 1), 0, 0, ()),
    )


@pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed'", "echo 'No devices were found'"])
def test_an_nvidia_smi_that_fails_means_no_driver(tmp_path: Path, script: str) -> None:
    """Its error text is not taken for a GPU."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    smi.chmod(0o755)

    assert nvidia_gpus({"PATH": f"{tmp_path}:{os.environ['PATH']}"}) == (None, ())


def test_a_port_somebody_listens_on_is_busy_and_a_free_one_is_not(tmp_path: Path) -> None:
    """Found out by binding, as the gateway will."""
    with socket.socket() as listener, socket.socket() as free:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        free.bind(("127.0.0.1", 0))
        ports = [("127.0.0.1", one.getsockname()[1]) for one in (listener, free)]
        free.close()

        facts = gather_facts({}, cache=tmp_path, ports=ports)

    assert facts.ports_busy == (ports[0],)


def test_compilers_are_looked_for_on_the_path_and_by_the_operators_variables(tmp_path: Path) -> None:
    """CXX names a program that must exist; without it the usual names are tried."""
    for name in ("clang++", "special"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": str(tmp_path)}

    usual = gather_facts(path, cache=tmp_path, ports=())
    named = gather_facts(path | {"CXX": "special -O2"}, cache=tmp_path, ports=())
    missing = gather_facts(path | {"CXX": "none"}, cache=tmp_path, ports=())

    assert [usual.cxx_compiler, named.cxx_compiler, missing.cxx_compiler] == [
        str(tmp_path / "clang++"),
        str(tmp_path / "special"),
        None,
    ]
    assert usual.c_compiler is None


def test_proxies_are_found_in_both_spellings_and_no_proxy_is_split(tmp_path: Path) -> None:
    """An empty variable is as good as none."""
    environ = {"HTTP_PROXY": "http://p", "all_proxy": "socks5://p", "https_proxy": "", "NO_PROXY": "a, 127.0.0.1,"}

    facts = gather_facts(environ, cache=tmp_path, ports=())

    assert (facts.proxies, facts.no_proxy) == (("http_proxy", "all_proxy"), ("a", "127.0.0.1"))


def test_a_cache_that_does_not_exist_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    """On the file system of the nearest folder that exists; nothing is created."""
    cache = tmp_path / "not" / "yet"

    facts = gather_facts({}, cache=cache, ports=())

    assert facts.cache_free is not None
    assert not cache.exists()
