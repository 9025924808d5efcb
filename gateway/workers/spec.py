"""What one worker is: all the supervisor must know to launch, watch and stop it, decided before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from gateway.config.settings import Engine, Launch, Model, Settings, StaticWorker, Watch
from gateway.workers.placement import Machine, Slot, place

Variant = Literal["cpu", "cuda"]

DEFAULT_ENGINE = "default"


class EngineEnvironmentLike(Protocol):
    """An environment in which vLLM is installed, as the set-up found or built it."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        ...

    @property
    def variant(self) -> Variant:
        """What its vLLM computes on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """
    One worker, launched by us or (with `static`) by somebody else.

    `name` is unique in the fleet (`MODEL-INDEX`), `model` the public name, `source` what vLLM loads (hub id or folder).
    `gpus` are PCI-order indices, `cpus` the cores its threads are bound to; both empty means vLLM decides. `mig_device`
    is the UUID of a MIG slice that it gets instead of GPUs. `api_key` is
    a random secret between us and this worker, never in an argument list and never printed.
    """

    name: str
    model: str
    watch: Watch
    drain_timeout_s: float
    source: str = ""
    engine_python: Path = Path()
    engine_command: tuple[str, ...] = ()
    variant: Variant = "cpu"
    launch: Launch = field(default_factory=Launch)
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    mig_device: str = ""
    log_dir: Path = Path()
    runtime_dir: Path = Path()
    api_key: str | None = field(default=None, repr=False)
    static: StaticWorker | None = None


def specs_from_settings(
    settings: Settings,
    engines: Mapping[str, EngineEnvironmentLike],
    *,
    machine: Machine,
    log_dir: Path,
    runtime_dir: Path,
    new_secret: Callable[[], str],
) -> tuple[WorkerSpec, ...]:
    """
    All workers of a configuration, in its order; launched ones of a model before its static ones.

    Args:
        engines: By the names that `models.NAME.engine` uses; needed only for models that launch workers.
        machine: The GPUs and cores to share out.
        log_dir: Where each worker's output file goes.
        runtime_dir: Where Unix sockets go (keep it short: a socket path has at most 107 bytes).
        new_secret: Makes the key of one worker, such as `secrets.token_urlsafe`.

    Raises:
        ConfigurationError: a model asks for GPUs that do not exist, or for more than there are.
    """
    wanted = [(name, model, engines[model.engine].variant) for name, model in settings.models.items() if model.launched]
    slots = place(wanted, machine)
    specs: list[WorkerSpec] = []
    stems = _stems(tuple(settings.models))
    for name, model in settings.models.items():
        if model.launched:
            specs += _launched(
                settings, name, model, engines, slots[name], log_dir, runtime_dir, new_secret, stems[name]
            )
        specs += [
            WorkerSpec(
                name=f"{stems[name]}-static-{index}",
                model=name,
                watch=settings.watch,
                drain_timeout_s=settings.drain_timeout_s,
                static=static,
            )
            for index, static in enumerate(model.workers)
        ]
    return tuple(specs)


def _stems(models: Sequence[str]) -> dict[str, str]:
    """
    What the names of each model's workers begin with: the model's name made fit for files, commands and labels.

    `org/m` gives `org-m`; a model whose name comes to the same as an earlier one's gets a number.
    """
    stems: dict[str, str] = {}
    for model in models:
        plain = "".join(char if char.isascii() and (char.isalnum() or char in "._") else "-" for char in model)
        plain = plain.strip("-.") or "model"
        stem, number = plain, 2
        # `a-static` may neither stand beside the static workers of `a`.
        while {stem, f"{stem}-static", stem.removesuffix("-static")} & set(stems.values()):
            stem, number = f"{plain}-x{number}", number + 1
        stems[model] = stem
    return stems


def _launched(
    settings: Settings,
    name: str,
    model: Model,
    engines: Mapping[str, EngineEnvironmentLike],
    slots: tuple[Slot, ...],
    log_dir: Path,
    runtime_dir: Path,
    new_secret: Callable[[], str],
    stem: str,
) -> list[WorkerSpec]:
    environment = engines[model.engine]
    command = settings.engines.get(model.engine, Engine()).command
    return [
        WorkerSpec(
            name=f"{stem}-{index}",
            model=name,
            watch=settings.watch,
            drain_timeout_s=settings.drain_timeout_s,
            source=model.model or "",
            engine_python=environment.python,
            engine_command=tuple(command),
            variant=environment.variant,
            launch=model.launch,
            gpus=slot.gpus,
            cpus=slot.cpus,
            mig_device=slot.mig_device,
            log_dir=log_dir,
            runtime_dir=runtime_dir,
            api_key=new_secret(),
        )
        for index, slot in enumerate(slots)
    ]
