"""The engine's environment: what is announced, what is installed how, what is said when it fails."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gateway.errors import EngineUnavailable
from gateway.setup.builds import CPU
from gateway.setup.completion import MARKER, finished
from gateway.setup.engine import TORCH_CPU_INDEX, EngineEnvironment, EngineRequest, engine_folder, ensure_engine
from gateway.setup.facts import MachineFacts
from gateway.setup.progress import SetupProgress
from tests.setup.conftest import FakeMachine
from tests.setup.machine import machine


def ensure(
    fake: FakeMachine, request: EngineRequest | None = None, facts: MachineFacts | None = None, **environ: str
) -> tuple[EngineEnvironment, list[SetupProgress]]:
    """Build on the fake machine; returns the environment and everything reported."""
    reported: list[SetupProgress] = []
    engine = ensure_engine(
        request or EngineRequest(),
        fake.folder,
        facts or machine(),
        reported.append,
        {**fake.environ, **environ},
        base_python=fake.python,
    )
    return engine, reported


def test_the_cpu_engine_is_announced_as_a_third_partys_build_with_its_size(fake: FakeMachine) -> None:
    """Before anything is downloaded the operator reads what it is, how large and where it goes."""
    engine, reported = ensure(fake)

    assert EngineEnvironment(engine_folder(CPU, fake.folder) / "bin" / "python", "cpu", "9.9", True) == engine
    first = reported[0]
    assert (first.subject, first.step) == ("engine", "installing")
    assert "a third party's build of vLLM" in first.detail
    assert "on disk" in first.detail
    assert str(fake.folder) in first.detail


def test_torch_comes_from_pips_own_configuration_when_it_is_there(fake: FakeMachine) -> None:
    """The official index is not asked without need: machines without internet have mirrors."""
    _, reported = ensure(fake)

    assert fake.trace().count("torch") == 1
    assert not [one for one in reported if TORCH_CPU_INDEX in one.detail]


def test_the_marker_records_which_file_torch_was_installed_from(fake: FakeMachine) -> None:
    """Torch is on no lock, so what it was is at least known afterwards."""
    ensure(fake)

    folder = engine_folder(CPU, fake.folder)
    details = finished(folder, folder.name)
    assert details is not None
    assert hashlib.sha256(Path(fake.environ["FAKE_WHEEL"]).read_bytes()).hexdigest() == details["torch_sha256"]


def test_torch_that_is_not_there_is_taken_from_the_official_cpu_index_and_said(fake: FakeMachine) -> None:
    """The one address in the code, used visibly."""
    _, reported = ensure(fake, FAKE_FAIL="torch")

    assert fake.trace().count("torch") == 2
    assert len([one for one in reported if TORCH_CPU_INDEX in one.detail]) == 1


@pytest.mark.parametrize("failing", ["venv", "pip", "verify"])
def test_a_failed_build_says_the_reason_the_log_and_the_way_out(fake: FakeMachine, failing: str) -> None:
    """No traceback and no finished environment; after the cause is gone the next run succeeds."""
    with pytest.raises(EngineUnavailable) as caught:
        ensure(fake, FAKE_FAIL=failing)

    assert f"ERROR: {failing} was told to fail" in str(caught.value)
    assert f"{engine_folder(CPU, fake.folder)}.log" in str(caught.value)
    assert "engines.default.python" in caught.value.fix
    assert not list(fake.folder.rglob(MARKER))
    ensure(fake)


def test_a_cache_that_cannot_be_written_names_the_variable(fake: FakeMachine) -> None:
    """A file where the folder should be stands for a read-only home."""
    (fake.folder / "engines").write_text("in the way", encoding="utf-8")

    with pytest.raises(EngineUnavailable, match="GATEWAY_CACHE_DIR"):
        ensure(fake)


def test_cuda_without_a_fitting_driver_names_the_key(fake: FakeMachine) -> None:
    """Nothing is installed in its place."""
    with pytest.raises(EngineUnavailable, match=r"engines\.big\.variant is cuda.*NVIDIA driver none"):
        ensure(fake, EngineRequest(name="big", variant="cuda"))

    assert fake.trace() == []


@pytest.mark.parametrize("kind", ["missing", "directory", "not_executable"])
def test_an_own_interpreter_that_is_none_names_the_key_and_what_was_found(
    fake: FakeMachine, tmp_path: Path, kind: str
) -> None:
    """And never falls back to building one."""
    python = tmp_path / "own-python"
    if kind == "directory":
        python.mkdir()
    elif kind == "not_executable":
        python.write_text("#!/bin/sh\n", encoding="utf-8")

    with pytest.raises(EngineUnavailable, match=r"engines\.mine\.python must be the interpreter") as caught:
        ensure(fake, EngineRequest(name="mine", python=python))

    assert str(python) in str(caught.value)
    assert fake.trace() == []


def test_an_own_environment_without_vllm_says_why_the_import_failed(fake: FakeMachine, tmp_path: Path) -> None:
    """The last line of the traceback, and the command that installs it there."""
    python = tmp_path / "own-python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'vllm'\" >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)

    with pytest.raises(EngineUnavailable, match="No module named 'vllm'") as caught:
        ensure(fake, EngineRequest(name="mine", python=python))

    assert f"{python} -m pip install vllm" in caught.value.fix


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", "is no Python interpreter"),
        ("head -c 5000 /dev/zero | tr '\\0' x >&2; exit 2", "vLLM cannot be imported there: xxx"),
    ],
    ids=["silent", "long-winded"],
)
def test_a_program_that_is_no_interpreter_is_refused_in_one_short_sentence(
    fake: FakeMachine, tmp_path: Path, script: str, expected: str
) -> None:
    """Whatever it does with our arguments: success proves nothing unless vLLM has said its version."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)

    with pytest.raises(EngineUnavailable, match=expected) as caught:
        ensure(fake, EngineRequest(python=program))

    assert len(str(caught.value)) < 1000


def test_an_own_environment_is_used_as_it_is(fake: FakeMachine, tmp_path: Path) -> None:
    """Its version, its kind of device and who built it come from its own import; nothing is installed."""
    python = tmp_path / "own-python"
    python.write_text(
        "#!/bin/sh\necho noise\n"
        'echo \'VERIFIED {"version": "0.25.1", "device": "cuda", "torch": "2.11.0", "distribution": "vllm"}\'\n',
        encoding="utf-8",
    )
    python.chmod(0o755)

    engine, reported = ensure(fake, EngineRequest(python=python))

    assert EngineEnvironment(python, "cuda", "0.25.1", False) == engine
    assert reported == []
    assert list(fake.folder.iterdir()) == []


def test_the_lock_is_installed_with_hashes_and_without_dependencies(fake: FakeMachine) -> None:
    """What pip would choose by itself is never installed."""
    ensure(fake)

    log = Path(f"{engine_folder(CPU, fake.folder)}.log").read_text(encoding="utf-8")
    (install,) = [line for line in log.splitlines() if line.startswith("$") and "--requirement" in line]
    assert "--no-deps" in install
    assert "--require-hashes" in install
    assert os.fspath(engine_folder(CPU, fake.folder)) in install
