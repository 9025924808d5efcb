"""From a configuration to workers that can be launched, at the start and at every reload."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gateway.config.settings import Settings
from gateway.control.machine import machine_from, require_gpus
from gateway.control.preparation import (
    LaunchEnvironment,
    Surroundings,
    prepare_engines,
    prepare_models,
    problems,
    refuse_blockers,
)
from gateway.setup.doctor import Severity
from gateway.setup.facts import MachineFacts
from gateway.workers.command_line import fingerprint
from gateway.workers.placement import Machine
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
            if finding.severity is Severity.WARNING:
                text = f"warning: {finding.sentence}. To mend it: {finding.fix}"
                self._console.print(text, markup=False, soft_wrap=True)
        return self.prepared(asked)

    def prepared(self, asked: Settings) -> Settings:
        """The settings with engines and models in place. Raises GatewayError."""
        self._engines = prepare_engines(asked, self._facts, self._around, base_python=sys.executable)
        require_gpus(asked, self._engines)
        return prepare_models(asked, self._engines, self._around, folder=self._folder)

    def specs(self, prepared: Settings) -> tuple[WorkerSpec, ...]:
        """The workers of settings that `prepared` gave last."""
        return plan_workers(prepared, self.machine, self._engines, self._logs, self.runtime_dir)


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
