"""Every finding of the doctor on a faked machine, and silence on a healthy one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.setup.doctor import Finding, Purpose, Severity, checks_passed, doctor_report, findings
from gateway.setup.facts import MachineFacts
from tests.setup.machine import GIB, H200, gpu_machine, machine

BLOCKER, WARNING = Severity.BLOCKER, Severity.WARNING
BUSY = replace(H200, used_bytes=60 * GIB, other_pids=(4711,))
OLD_GPU = replace(H200, index=1, name="Tesla P100", capability=(6, 0))


def the_finding(facts: MachineFacts, purpose: Purpose = Purpose.SERVE, variant: str = "auto") -> Finding:
    """The only thing that is wrong."""
    found = findings(facts, purpose, variant)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("facts", [machine(), gpu_machine()], ids=["cpu", "gpu"])
def test_a_healthy_machine_has_no_findings(facts: MachineFacts, purpose: Purpose) -> None:
    """What is in order is not complained about."""
    assert findings(facts, purpose) == ()


CASES = [
    ("python_old", machine(python=(3, 10, 2)), BLOCKER, "python", "3.10.2", "make PYTHON="),
    ("python_new", machine(python=(3, 15, 0)), BLOCKER, "python", "3.15.0", "make PYTHON="),
    ("ensurepip", machine(has_ensurepip=False), BLOCKER, "ensurepip", "ensurepip", "python3.12-venv"),
    ("glibc_old", machine(libc=("glibc", 2, 30)), BLOCKER, "glibc", "2.31 or newer (manylinux_2_31)", "distribution"),
    ("glibc_arm", gpu_machine(machine="aarch64", libc=("glibc", 2, 31)), BLOCKER, "glibc", "2.34", "distribution"),
    ("engine_python", gpu_machine(python=(3, 14, 0)), BLOCKER, "engine_python", "up to 3.13", "PYTHON=python3.13"),
    ("musl", machine(libc=("", 0, 0)), BLOCKER, "glibc", "another C library", "distribution"),
    ("machine", machine(machine="ppc64le"), BLOCKER, "machine", "ppc64le", "ENGINE_PYTHON="),
    ("c_compiler", machine(c_compiler=None), BLOCKER, "compiler", "no C compiler", "build-essential"),
    ("cxx_compiler", machine(cxx_compiler=None), BLOCKER, "compiler", "no C++ compiler", "build-essential"),
    ("headers", machine(has_headers=False), BLOCKER, "headers", "Python.h", "python3.12-dev"),
    ("macos", machine(system="Darwin", libc=("", 0, 0)), BLOCKER, "system", "Darwin", "make demo"),
    ("disk", machine(cache_free=1_000_000_000), BLOCKER, "disk", "1.0 GB are free", "GATEWAY_CACHE_DIR"),
    ("disk_cuda", gpu_machine(cache_free=9_000_000_000), BLOCKER, "disk", "9.0 GB are free", "GATEWAY_CACHE_DIR"),
    ("memory", machine(memory_available=2 * GIB), BLOCKER, "memory", "2.0 GiB", "ps aux"),
    ("memory_tight", machine(memory_available=4 * GIB), WARNING, "memory", "4.0 GiB", "ps aux"),
    (
        "memory_cgroup",
        machine(memory_available=2 * GIB, memory_limited=True),
        BLOCKER,
        "memory",
        "container's limit",
        "--memory",
    ),
    ("shm_small", machine(shm_total=64 * 1024**2), WARNING, "shm", "64 MiB", "--shm-size"),
    ("shm_full", machine(shm_free=10 * 1024**2), WARNING, "shm", "10 MiB left", "ls -la /dev/shm"),
    ("port", machine(ports_busy=(("127.0.0.1", 8000),)), BLOCKER, "ports", "port 8000", "listen.port"),
    ("proxy", machine(proxies=("https_proxy",)), WARNING, "proxy", "HTTPS_PROXY", "NO_PROXY=localhost,127.0.0.1"),
    ("no_driver", machine(nvidia_devices=1), WARNING, "gpu", "nvidia-smi does not answer", "nvidia-driver"),
    ("driver_old", gpu_machine(driver="470.57.02"), WARNING, "driver", "470.57.02", "nvidia-driver-"),
    ("gpu_busy", gpu_machine(BUSY), BLOCKER, "gpu_used", "process 4711", "models.NAME.launch.gpus"),
    (
        "gpu_busy_unseen",
        gpu_machine(replace(BUSY, other_pids=()), replace(H200, index=1)),
        WARNING,
        "gpu_used",
        "GPU 0 (60.0 of 140.0 GiB)",
        "nvidia-smi",
    ),
    ("one_gpu_old", gpu_machine(H200, OLD_GPU), WARNING, "capability", "GPU 1 (Tesla P100) has 6.0", "gpus, without 1"),
]


@pytest.mark.parametrize(
    ("facts", "severity", "subject", "says", "fix"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_one_wrong_fact_makes_one_finding(
    facts: MachineFacts, severity: Severity, subject: str, says: str, fix: str
) -> None:
    """One sentence with what was found, and the command that mends it; nothing else is blamed."""
    finding = the_finding(facts)

    assert (severity, subject) == (finding.severity, finding.subject)
    assert says in finding.sentence
    assert fix in finding.fix
    assert "\n" not in finding.sentence


def test_cuda_asked_for_without_a_gpu_blocks() -> None:
    """An explicit variant is never silently replaced by the CPU build."""
    assert (lambda one: (one.severity, one.subject))(the_finding(machine(), variant="cuda")) == (BLOCKER, "gpu")


def test_cuda_asked_for_with_an_old_driver_blocks() -> None:
    """The same for the driver."""
    finding = the_finding(gpu_machine(driver="470.57.02"), variant="cuda")

    assert (finding.severity, finding.subject) == (BLOCKER, "driver")


def test_cuda_asked_for_on_gpus_that_are_all_too_old_blocks() -> None:
    """The same for the compute capability."""
    finding = the_finding(gpu_machine(replace(OLD_GPU, index=0)), variant="cuda")

    assert (finding.severity, finding.subject) == (BLOCKER, "capability")


def test_gpus_do_not_matter_to_an_engine_on_the_cpu() -> None:
    """Who asks for the CPU build need not care who uses the GPU."""
    assert findings(gpu_machine(BUSY), Purpose.SERVE, "cpu") == ()


def test_what_is_built_needs_no_more_room() -> None:
    """A second start on a nearly full disk works."""
    assert findings(machine(cache_free=1, engine_built=True, model_built=True), Purpose.SERVE) == ()


def test_the_operators_own_engine_is_not_asked_for_room_or_glibc() -> None:
    """Nothing is installed for it."""
    facts = machine(libc=("", 0, 0), cache_free=500_000_000)

    assert findings(facts, Purpose.SERVE, "own") == ()


def test_missing_headers_do_not_stop_the_operators_own_engine() -> None:
    """It may be of another Python, whose headers were not looked for."""
    finding = the_finding(machine(has_headers=False), variant="own")

    assert (WARNING, "headers") == (finding.severity, finding.subject)


def test_the_demo_needs_no_compiler_no_linux_and_little_memory() -> None:
    """The route for laptops and macOS."""
    facts = machine(system="Darwin", libc=("", 0, 0), cxx_compiler=None, has_headers=False, memory_available=GIB)

    assert findings(facts, Purpose.DEMO) == ()


@pytest.mark.parametrize("no_proxy", ["127.0.0.1", "localhost", "*"])
def test_a_proxy_that_leaves_this_machine_alone_is_no_finding(no_proxy: str) -> None:
    """Companies have proxies; only one in front of loopback does harm."""
    assert findings(machine(proxies=("http_proxy",), no_proxy=("corp.example", no_proxy)), Purpose.SERVE) == ()


def test_the_report_shows_what_is_fine_then_warnings_then_blockers_with_their_commands() -> None:
    """What stops the operator stands last, where the eye is."""
    facts = machine(c_compiler=None, proxies=("http_proxy",))

    report = doctor_report(findings(facts, Purpose.SERVE), checks_passed(facts, Purpose.SERVE))

    assert report.index("ok       glibc 2.36") < report.index("warning ") < report.index("blocker ")
    assert "to mend it: sudo apt-get install build-essential" in report
    assert "no proxy stands" not in report
