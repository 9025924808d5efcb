"""
The engine's environment: a virtual environment with vLLM, apart from the gateway's own, which never imports it.

It lies in the user's cache, keyed by lock, Python and platform, is built in place under a lock, and counts as built iff
its completion marker exists. Its installation on CUDA is the same code with another lock, and is not part of the tests:
it needs the hardware.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gateway.errors import EngineUnavailable
from gateway.setup.builds import EngineBuild, suitable_build
from gateway.setup.completion import discard, exclusive, finish, finished
from gateway.setup.facts import MachineFacts
from gateway.setup.installer import StepFailed, child_environment, pip_lines, requirements_in, run_step
from gateway.setup.progress import Report, SetupProgress
from gateway.setup.sizes import megabytes

LONGEST_REASON = 200
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# Run with the engine's interpreter. Not just vllm: the server's module imports what a worker will import, and so finds
# a torchvision that does not match torch, a missing shared library, a CPU without the needed instructions.
VERIFY = """
import importlib.metadata, json, vllm, vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
print("VERIFIED " + json.dumps({"version": vllm.__version__, "device": current_platform.device_type or "none",
                                "torch": importlib.metadata.version("torch"),
                                "distribution": importlib.metadata.packages_distributions()["vllm"][0]}))
"""
# For the operator's own environment, at each start: quick, and the worker's own start tells the rest.
VERIFY_QUICKLY = VERIFY.replace(", vllm.entrypoints.openai.api_server", "")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """
    What the configuration asks for: one entry of `engines`.

    `name` is that entry's key, for messages. `python` is the operator's own interpreter; then nothing is installed.
    """

    name: str = "default"
    variant: str = "auto"
    python: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """
    An environment that vLLM was imported in. `variant` is `cpu`, `cuda` or another of vLLM's device types;
    `third_party` tells that vLLM's own project did not make this build.
    """

    python: Path
    variant: str
    version: str
    third_party: bool


def engine_folder(build: EngineBuild, cache: Path) -> Path:
    """Where that build lies for the running Python and this platform."""
    digest = hashlib.sha256(_lock_text(build).encode()).hexdigest()[:12]
    tag = f"py{sys.version_info.major}{sys.version_info.minor}-{platform.system().lower()}-{platform.machine()}"
    return cache / "engines" / f"{build.name}-{build.version}-{tag}-{digest}"


def built_engine(build: EngineBuild, cache: Path) -> EngineEnvironment | None:
    """The finished environment, or None; nothing is started or changed."""
    folder = engine_folder(build, cache)
    details = finished(folder, folder.name)
    python = folder / "bin" / "python"
    if details is None or not python.exists():
        return None
    return EngineEnvironment(python, build.variant, details.get("version", build.version), build.third_party)


def ensure_engine(
    engine: EngineRequest,
    cache: Path,
    facts: MachineFacts,
    report: Report,
    environ: Mapping[str, str],
    *,
    base_python: str = sys.executable,
    hold: Callable[[Path], None] = lambda path: None,
) -> EngineEnvironment:
    """
    The environment for that request, built first when there is none: minutes and gigabytes, announced by `report`.

    Blocks; Ctrl-C ends it and leaves nothing that looks finished. Of two runs at once the second waits for the first.

    Args:
        environ: Environment for pip, the operator's proxies and pip settings included.
        base_python: Interpreter that the environment is created with.
        hold: Told the environment before it is looked for, so that nobody removes it (`Holds`).

    Raises EngineUnavailable, naming the key or command that mends it.
    """
    if engine.python is not None:
        return _own_engine(engine, environ)
    build = suitable_build(engine.variant, facts)
    if build is None:
        raise EngineUnavailable(
            f"engines.{engine.name}.variant is {engine.variant}, and no pinned CUDA build of vLLM fits "
            f"NVIDIA driver {facts.nvidia_driver or 'none'}",
            fix="gateway doctor --for serve, or set the variant to cpu",
        )
    folder = engine_folder(build, cache)
    hold(folder)
    if (built := built_engine(build, cache)) is not None:
        return built
    log = folder.with_name(folder.name + ".log")

    def waiting(holder: str) -> None:
        report(SetupProgress("engine", "waiting", f"process {holder} is installing into {folder}"))

    try:
        with exclusive(folder.with_name(folder.name + ".lock"), waiting) as lock:
            if (built := built_engine(build, cache)) is not None:
                return built
            _build(build, folder, log, lock, base_python, environ, report)
    except StepFailed as failure:
        raise EngineUnavailable(
            f"the engine could not be installed ({failure}): {failure.reason}; everything printed is in {log}",
            fix=f"check the network and pip's configuration, then try again; or set engines.{engine.name}.python "
            "(make serve ENGINE_PYTHON=...) to an environment with vLLM",
        ) from failure
    except OSError as problem:
        raise EngineUnavailable(
            f"the engine could not be written to {folder}: {problem}", fix="export GATEWAY_CACHE_DIR=/a/writable/folder"
        ) from problem
    built = built_engine(build, cache)
    assert built is not None
    return built


def _build(
    build: EngineBuild,
    folder: Path,
    log: Path,
    lock: int,
    base_python: str,
    environ: Mapping[str, str],
    report: Report,
) -> None:
    """Build from nothing in place; the caller holds the lock."""
    text = _lock_text(build)
    total = requirements_in(text)
    report(
        SetupProgress(
            "engine",
            "installing",
            f"{build.title}: about {megabytes(build.size.download)} to download and {megabytes(build.size.disk)} on "
            f"disk, into {folder}",
        )
    )
    discard(folder)
    log.unlink(missing_ok=True)
    run_step([base_python, "-I", "-m", "venv", str(folder)], environ=environ, lock=lock, log=log, folder=folder)
    python = folder / "bin" / "python"
    pip = [str(python), "-I", "-u", "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    pip += ["--only-binary", ":all:"]
    details = {}
    if build.torch is not None:
        details["torch_sha256"] = _install_torch(build.torch, pip, folder, log, lock, environ, report)
    requirements = folder / "requirements.txt"
    requirements.write_text(text, encoding="utf-8")
    run_step(
        [*pip, "--require-hashes", "--requirement", str(requirements)],
        environ=environ,
        lock=lock,
        log=log,
        folder=folder,
        on_line=pip_lines("engine", total, report),
    )
    report(SetupProgress("engine", "verifying", "importing vLLM in its new environment"))
    details |= _verified(
        run_step(
            [str(python), "-I", "-c", VERIFY],
            environ=_for_import(environ),
            lock=lock,
            log=log,
            folder=folder,
            cwd=folder,
        )
    )
    finish(folder, folder.name, details)
    report(SetupProgress("engine", "ready", f"{build.title} in {folder}"))


def _install_torch(
    version: str,
    pip: list[str],
    folder: Path,
    log: Path,
    lock: int,
    environ: Mapping[str, str],
    report: Report,
) -> str:
    """
    Install the CPU build of torch and return the SHA-256 of the file that was installed.

    It is on no lock: PyPI does not carry it, and mirrors repack it. What was installed is recorded in the marker.
    """
    requirement = f"torch=={version}"
    installed = folder / "torch.json"
    command = [*pip, "--report", str(installed)]
    follow = pip_lines("engine", 1, report)
    report(SetupProgress("engine", "installing", f"{requirement}, from where pip is configured to look"))
    try:
        run_step([*command, requirement], environ=environ, lock=lock, log=log, folder=folder, on_line=follow)
    except StepFailed as failure:
        if not any("No matching distribution found" in line for line in failure.tail):
            raise
        report(
            SetupProgress("engine", "installing", f"{requirement} is not there; from PyTorch's own {TORCH_CPU_INDEX}")
        )
        run_step(
            [*command, "--index-url", TORCH_CPU_INDEX, requirement],
            environ=environ,
            lock=lock,
            log=log,
            folder=folder,
            on_line=follow,
        )
    return _installed_sha256(installed)


def _installed_sha256(report_file: Path) -> str:
    """The SHA-256 of the one file that pip's report says it installed; `unknown` where pip did not need to know it."""
    try:
        download = json.loads(report_file.read_text(encoding="utf-8"))["install"][0]["download_info"]
        if download["url"].startswith("file://"):
            with open(unquote(urlsplit(download["url"]).path), "rb") as archive:
                return hashlib.file_digest(archive, "sha256").hexdigest()
        return str(download["archive_info"]["hashes"]["sha256"])
    except (OSError, ValueError, KeyError, IndexError):
        return "unknown"


def _own_engine(engine: EngineRequest, environ: Mapping[str, str]) -> EngineEnvironment:
    """The operator's environment, after vLLM was imported in it."""
    key = f"engines.{engine.name}.python"
    python = engine.python
    assert python is not None
    if not python.is_file() or not os.access(python, os.X_OK):
        found = "it is not executable" if python.exists() else "there is no such file"
        raise EngineUnavailable(
            f"{key} must be the interpreter of an environment with vLLM, found {str(python)!r}: {found}",
            fix=f"set {key} (or ENGINE_PYTHON=) to its bin/python, or leave it unset to have one built",
        )
    try:
        run = subprocess.run(
            [str(python), "-c", VERIFY_QUICKLY],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=300,
            env=_for_import(environ),
            check=False,
            cwd=python.parent,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EngineUnavailable(
            f"{key} is {str(python)!r}, and it does not run: {problem}", fix=f"{python} -c 'import vllm'"
        ) from problem
    if run.returncode != 0:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1][:LONGEST_REASON]
        raise EngineUnavailable(
            f"{key} is {str(python)!r}, and vLLM cannot be imported there: {last}",
            fix=f"{python} -m pip install vllm, or leave {key} unset to have an environment built",
        )
    details = _verified(run.stdout.splitlines())
    if not details:
        raise EngineUnavailable(
            f"{key} is {str(python)!r}, which ran and is no Python interpreter",
            fix=f"set {key} (or ENGINE_PYTHON=) to the bin/python of an environment with vLLM",
        )
    third_party = details.get("distribution", "vllm") != "vllm"
    return EngineEnvironment(python, details.get("device", "none"), details.get("version", "unknown"), third_party)


def _verified(lines: list[str]) -> dict[str, str]:
    """What VERIFY printed, among whatever the imported packages print."""
    for line in lines:
        if line.startswith("VERIFIED "):
            return {name: str(value) for name, value in json.loads(line.removeprefix("VERIFIED ")).items()}
    return {}


def _for_import(environ: Mapping[str, str]) -> dict[str, str]:
    """Importing vLLM must neither report usage nor need a home directory that can be written."""
    return child_environment(environ) | {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def _lock_text(build: EngineBuild) -> str:
    return (files("gateway.setup") / "locks" / build.lock).read_text(encoding="utf-8")
