"""From a configuration to workers that can be launched, at the start and at every reload."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from rich.console import Console

from gateway.config.settings import Engine, Settings
from gateway.control.machine import machine_from, require_gpus
from gateway.control.preparation import (
    LaunchEnvironment,
    Surroundings,
    prepare_engines,
    prepare_models,
    problems,
    refuse_blockers,
    uses_vllm,
)
from gateway.errors import ConfigurationError, ConfigurationProblems
from gateway.setup.builds import CUDA_13, suitable_build
from gateway.setup.doctor import Severity
from gateway.setup.engine import engine_folder
from gateway.setup.facts import MachineFacts
from gateway.workers.command_line import fingerprint
from gateway.workers.model_files import ModelFiles, find_model_files
from gateway.workers.placement import Machine
from gateway.workers.preflight import Resources, check_fleet, check_launch
from gateway.workers.spec import WorkerSpec, specs_from_settings


class WorkerFactory:
    """Makes settings launchable: engines and models there, workers placed on the machine as it was at the start."""

    def __init__(self, facts: MachineFacts, around: Surroundings, console: Console, folder: Path, logs: Path) -> None:
        self._facts = facts
        self._around = around
        self._console = console
        self._folder = folder
        self._logs = logs
        # The machine without our workers: where a worker is placed must not depend on what runs already.
        self.machine = machine_from(facts, around.environ)
        self._engines: dict[str, LaunchEnvironment] = {}
        self.runtime_dir = Path()

    def first(self, asked: Settings) -> Settings:
        """Prepare the start; what the doctor warns of is said."""
        found = problems(asked, self._facts)
        refuse_blockers(found)
        for finding in found:
            # Said by `make serve` just before, through the doctor.
            if finding.severity is Severity.WARNING and not self._around.environ.get("GATEWAY_DOCTOR_SHOWN"):
                text = f"warning: {finding.sentence}. To mend it: {finding.fix}"
                self._console.print(text, markup=False, soft_wrap=True)
        return self.prepared(asked)

    def prepared(self, asked: Settings) -> Settings:
        """The settings with engines and models in place. Raises GatewayError."""
        self._engines = prepare_engines(asked, self._facts, self._around, base_python=sys.executable)
        require_gpus(asked, self._engines)
        return prepare_models(asked, self._engines, self._around, folder=self._folder)

    def specs(self, prepared: Settings) -> tuple[WorkerSpec, ...]:
        """
        The workers of settings that `prepared` gave last.

        Raises ConfigurationProblems for what is bound to fail, before anything is started.
        """
        planned = plan_workers(prepared, self.machine, self._engines, self._logs, self.runtime_dir)
        refuse_hopeless(planned, self.resources, self._around.environ)
        return planned

    @property
    def resources(self) -> Resources:
        """What the workers may use together."""
        return resources_of(self.machine, self._facts)

    def model_files(self, spec: WorkerSpec) -> ModelFiles | None:
        """The model's own files, None where they are not on this machine yet. Reads them."""
        return _model_files(spec, self._around.environ)

    async def preflight(self, spec: WorkerSpec) -> Sequence[ConfigurationError]:
        """What is bound to fail about one launch (a download may have finished meanwhile)."""
        files = await anyio.to_thread.run_sync(self.model_files, spec)
        return check_launch(spec, files, self.resources)


@dataclass(frozen=True, slots=True)
class FileSource:
    """The configuration file of this start (`ReloadSource`)."""

    read_file: Callable[[], Settings]
    factory: WorkerFactory

    def read(self) -> Settings:
        """See `ReloadSource`."""
        return self.read_file()

    def prepare(self, settings: Settings) -> tuple[Settings, tuple[WorkerSpec, ...]]:
        """See `ReloadSource`."""
        prepared = self.factory.prepared(settings)
        return prepared, self.factory.specs(prepared)


def revision(spec: WorkerSpec) -> str:
    """What a worker is started with, as a digest; for a static worker, where it is and how it is asked."""
    if spec.static is None:
        return fingerprint(spec)
    key = spec.static.api_key.get_secret_value() if spec.static.api_key is not None else ""
    return hashlib.sha256(f"{spec.static.model_dump_json()} {key}".encode()).hexdigest()


def plan_workers(
    settings: Settings,
    machine: Machine,
    engines: Mapping[str, LaunchEnvironment],
    log_dir: Path,
    runtime_dir: Path,
) -> tuple[WorkerSpec, ...]:
    """All workers of the configuration on a machine."""
    return specs_from_settings(
        settings,
        engines,
        machine=machine,
        log_dir=log_dir,
        runtime_dir=runtime_dir,
        new_secret=secrets.token_urlsafe,
    )


def refuse_hopeless(specs: Sequence[WorkerSpec], resources: Resources, environ: Mapping[str, str]) -> None:
    """Raise ConfigurationProblems for what is bound to fail, before anything is started. Reads the models' files."""
    files = {spec.source: _model_files(spec, environ) for spec in specs if spec.static is None}
    if found := check_fleet(specs, files, resources):
        raise ConfigurationProblems(found)


def resources_of(machine: Machine, facts: MachineFacts) -> Resources:
    """What workers may use together on a machine."""
    return Resources({gpu.index: gpu for gpu in machine.gpus}, facts.memory_available)


def _model_files(spec: WorkerSpec, environ: Mapping[str, str]) -> ModelFiles | None:
    return find_model_files(spec.source, environ, spec.launch.extra_args)


def expected_engine(engine: Engine, facts: MachineFacts, around: Surroundings, *, on_gpus: bool) -> LaunchEnvironment:
    """The interpreter that `up` would use, whether it is there yet or not."""
    if not uses_vllm(engine):
        return LaunchEnvironment(engine.python or Path(sys.executable), "cpu")
    build = suitable_build(engine.variant, facts)
    if on_gpus and (build is None or build.variant == "cpu"):
        build = CUDA_13  # the file is meant for another machine
    if engine.python is not None or build is None:
        return LaunchEnvironment(engine.python or Path(sys.executable), "cuda" if on_gpus or facts.gpus else "cpu")
    python = engine_folder(build, around.directories.cache) / "bin" / "python"
    return LaunchEnvironment(python, "cpu" if build.variant == "cpu" else "cuda")
