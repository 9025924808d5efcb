"""
From a configuration to a fleet that can be launched: the machine is checked, engines and models are there.

Everything here blocks, and runs before the event loop exists. What it does over minutes is told to `report`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gateway.config.settings import Engine, Settings
from gateway.errors import EnvironmentProblem
from gateway.setup.builds import suitable_build
from gateway.setup.directories import Directories
from gateway.setup.doctor import Finding, Purpose, Severity, findings
from gateway.setup.engine import EngineRequest, built_engine, ensure_engine
from gateway.setup.facts import MachineFacts, gather_facts
from gateway.setup.model import DEFAULT_MODEL, built_default_model, ensure_default_model, resolve_model
from gateway.setup.progress import Report
from gateway.workers.placement import Machine
from gateway.workers.spec import DEFAULT_ENGINE, Variant

EMBEDDED = "embedded"
"""What `models.NAME.model` says for the model that comes with the gateway."""

GIB = 1024**3
# The embedded model is a demonstration: it must leave a shared GPU usable for everybody else.
EMBEDDED_GPU_BYTES = 8 * GIB
EMBEDDED_CPU_CONTEXT = 2048
SECOND_REPLICA_CPUS = 2
SECOND_REPLICA_BYTES = 5 * GIB
FIRST_REPLICA_CPUS = 2
FIRST_REPLICA_BYTES = 3 * GIB


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    What set-up uses besides the configuration: environment, folders, somebody who is told of progress, and somebody who
    keeps what is going to be used from being removed (`Holds`).
    """

    environ: Mapping[str, str]
    directories: Directories
    report: Report
    hold: Callable[[Path], None] = lambda path: None


@dataclass(frozen=True, slots=True)
class LaunchEnvironment:
    """Interpreter and device of one engine (`workers.spec.EngineEnvironmentLike`)."""

    python: Path
    variant: Variant


def uses_vllm(engine: Engine) -> bool:
    """
    Whether the engine needs an environment with vLLM: its command names vLLM and asks for our interpreter.

    Anything else (the simulator, a wrapper script) is run as it stands.
    """
    return any("vllm" in part for part in engine.command) and any("{python}" in part for part in engine.command)


def engines_in_use(settings: Settings) -> dict[str, Engine]:
    """The engines that launch workers, by name."""
    names = dict.fromkeys(model.engine for model in settings.models.values() if model.launched)
    return {name: settings.engines.get(name, Engine()) for name in names}


def uses_embedded_model(settings: Settings) -> bool:
    """Whether some launched model is the embedded one."""
    return any(model.model == EMBEDDED and model.launched for model in settings.models.values())


def machine_facts(settings: Settings, around: Surroundings) -> MachineFacts:
    """The machine, and what set-up has finished before. Ports are left out: the supervisor's own bind says more."""
    cache = around.directories.cache
    facts = gather_facts(around.environ, cache=cache, ports=())
    builds = [
        suitable_build(engine.variant, facts)
        for engine in engines_in_use(settings).values()
        if uses_vllm(engine) and engine.python is None
    ]
    return dataclasses.replace(
        facts,
        engine_built=all(build is not None and built_engine(build, cache) is not None for build in builds),
        model_built=not uses_embedded_model(settings) or built_default_model(cache) is not None,
    )


def without_ours(facts: MachineFacts, ours: frozenset[int]) -> MachineFacts:
    """
    The machine as it would be without the processes `ours`: workers that go on under this gateway are no obstacle to
    themselves. A GPU on which others compute as well stays theirs.
    """
    if not ours:
        return facts
    gpus = tuple(
        dataclasses.replace(gpu, other_pids=(), used_bytes=0)
        if gpu.other_pids and ours.issuperset(gpu.other_pids)
        else dataclasses.replace(gpu, other_pids=tuple(pid for pid in gpu.other_pids if pid not in ours))
        for gpu in facts.gpus
    )
    available = facts.memory_available
    return dataclasses.replace(
        facts, gpus=gpus, memory_available=None if available is None else available + sum(map(_own_bytes, ours))
    )


def _own_bytes(pid: int) -> int:
    """Memory that would be free without the process (shared pages left out, or they would count several times)."""
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return 0


def problems(settings: Settings, facts: MachineFacts) -> tuple[Finding, ...]:
    """What the doctor finds for this configuration, without repetition."""
    variants = [
        "own" if engine.python is not None else engine.variant
        for engine in engines_in_use(settings).values()
        if uses_vllm(engine)
    ]
    found: dict[Finding, None] = {}
    for variant in dict.fromkeys(variants):
        found |= dict.fromkeys(findings(facts, Purpose.SERVE, variant))
    if not variants:
        found |= dict.fromkeys(findings(facts, Purpose.DEMO))
    return tuple(found)


def refuse_blockers(found: tuple[Finding, ...]) -> None:
    """Raise EnvironmentProblem with the first blocker; `gateway doctor` shows them all."""
    blockers = [finding for finding in found if finding.severity is Severity.BLOCKER]
    if not blockers:
        return
    more = f" ({len(blockers) - 1} more: gateway doctor --for serve)" if len(blockers) > 1 else ""
    raise EnvironmentProblem(blockers[0].sentence + more, fix=blockers[0].fix)


def prepare_engines(
    settings: Settings, facts: MachineFacts, around: Surroundings, *, base_python: str
) -> dict[str, LaunchEnvironment]:
    """
    An interpreter for every engine in use; the ones without `python` are installed when they are not there.

    Raises EngineUnavailable.
    """
    prepared = {}
    for name, engine in engines_in_use(settings).items():
        if engine.python is not None:
            around.hold(engine.python)
        if not uses_vllm(engine):
            prepared[name] = LaunchEnvironment(engine.python or Path(base_python), "cpu")
            continue
        built = ensure_engine(
            EngineRequest(name=name, variant=engine.variant, python=engine.python),
            around.directories.cache,
            facts,
            around.report,
            around.environ,
            base_python=base_python,
            hold=around.hold,
        )
        prepared[name] = LaunchEnvironment(built.python, "cpu" if built.variant == "cpu" else "cuda")
    return prepared


def prepare_models(
    settings: Settings, engines: Mapping[str, LaunchEnvironment], around: Surroundings, *, folder: Path
) -> Settings:
    """
    The configuration with every launched model's source as vLLM takes it: absolute folder or hub id.

    Args:
        folder: What relative paths are relative to.

    Raises ModelUnavailable.
    """
    models = {}
    for name, model in settings.models.items():
        source = model.model
        if model.launched and source is not None and uses_vllm(settings.engines.get(model.engine, Engine())):
            if source == EMBEDDED:
                python = engines[model.engine].python
                built = ensure_default_model(
                    python, around.directories.cache, around.report, around.environ, hold=around.hold
                )
                source = str(built)
            else:
                source = resolve_model(source, folder).reference
                around.hold(Path(source))
        models[name] = model.model_copy(update={"model": source})
    return settings.model_copy(update={"models": models})


def document_for_model(
    text: str | None,
    *,
    name: str | None,
    replicas: int | None,
    engine_python: Path | None,
    facts: MachineFacts,
    machine: Machine,
    folder: Path,
) -> dict[str, object]:
    """
    The configuration of `gateway up [MODEL]`, as a document to validate.

    Args:
        text: Hub id or folder; None for the embedded model.
        name: Public name; None for the one that suits the model.
        replicas: None: one, and on a CPU a second where enough remains.
    """
    build = suitable_build("auto", facts)
    on_cpu = not machine.gpus or (engine_python is None and build is not None and build.variant == "cpu")
    launch: dict[str, object] = {}
    if text is None:
        public, source = name or DEFAULT_MODEL, EMBEDDED
        launch = {"max_model_len": EMBEDDED_CPU_CONTEXT} if on_cpu else embedded_gpu_launch(machine)
    else:
        resolved = resolve_model(text, folder)
        public, source = name or resolved.suggested_name, resolved.reference
    model: dict[str, object] = {
        "model": source,
        "replicas": replicas if replicas is not None else default_replicas(facts, embedded=text is None),
        "launch": launch,
    }
    document: dict[str, object] = {"models": {public: model}}
    if engine_python is not None:
        document["engines"] = {DEFAULT_ENGINE: {"python": str(engine_python)}}
    return document


def default_replicas(facts: MachineFacts, *, embedded: bool) -> int:
    """One; a second of the embedded model on a CPU where two cores and 5 GiB of available memory remain beside it."""
    if facts.gpus or not embedded or facts.memory_available is None:
        return 1
    cores_left = facts.cpus - FIRST_REPLICA_CPUS
    memory_left = facts.memory_available - FIRST_REPLICA_BYTES
    return 2 if cores_left >= SECOND_REPLICA_CPUS and memory_left >= SECOND_REPLICA_BYTES else 1


def embedded_gpu_launch(machine: Machine) -> dict[str, object]:
    """At most 8 GiB of the GPU that will be taken: the free one with most free memory."""
    free = [gpu for gpu in machine.gpus if not gpu.occupied]
    if not free:
        return {}  # placing the worker says what is wrong
    total = max(free, key=lambda gpu: gpu.free_bytes).total_bytes
    if total <= EMBEDDED_GPU_BYTES:
        return {}
    return {"gpu_memory_utilization": int(1000 * EMBEDDED_GPU_BYTES / total) / 1000}


def overridden(
    settings: Settings,
    host: str | None,
    port: int | None,
    admin_port: int | None,
    processes: int | None,
    engine_python: Path | None,
) -> Settings:
    """Options and variables on top of the file. What typer lets through needs no second validation."""
    update: dict[str, Any] = {}
    listen = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    if listen:
        update["listen"] = settings.listen.model_copy(update=listen)
    if admin_port is not None:
        update["admin"] = settings.admin.model_copy(update={"port": admin_port})
    if processes is not None:
        update["processes"] = processes
    if engine_python is not None:
        engine = settings.engines.get(DEFAULT_ENGINE, Engine())
        if uses_vllm(engine):
            own = engine.model_copy(update={"python": engine_python.absolute()})
            update["engines"] = {**settings.engines, DEFAULT_ENGINE: own}
    return settings.model_copy(update=update)
