"""What a worker's task needs from the world, as Protocols, so that every transition can be made in a test by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

import anyio

from gateway.clock import Clock, SystemClock
from gateway.errors import ConfigurationError
from gateway.types import WorkerAddress
from gateway.workers.command_line import CommandLine
from gateway.workers.log_file import MAX_BYTES
from gateway.workers.spec import WorkerSpec
from gateway.workers.warm_up import Feature

EXIT_UNKNOWN = 256
"""Exit status of a process that is not our child: no process can have it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What `/v1/models` and `/version` say; `names` are the served names, the canonical one first."""

    names: tuple[str, ...]
    max_model_len: int | None = None
    engine_version: str = ""


class ProbeFailure(Exception):
    """A probe got no or a wrong answer. `dead` is True when the worker itself said that its engine is dead (503)."""

    def __init__(self, detail: str, *, dead: bool = False) -> None:
        self.detail = detail
        self.dead = dead
        super().__init__(detail)


class Prober(Protocol):
    """Asks one worker questions over HTTP. Every method raises ProbeFailure, and ends within its time limit."""

    async def health(self) -> None:
        """`/health` is 200."""
        ...

    async def facts(self) -> ModelFacts:
        """`/v1/models`, and `/version` where it exists."""
        ...

    async def generate(self, timeout_s: float) -> None:
        """One request of one token: warm-up and canary. Succeeds at once for models that do not generate."""
        ...

    async def try_feature(self, feature: Feature, timeout_s: float) -> bool:
        """The feature's request is answered; False when this model does not have the feature (4xx)."""
        ...

    async def iterations(self) -> float | None:
        """Engine steps so far (`vllm:iteration_tokens_total_count`); None when the worker does not export it."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


class WorkerProcess(Protocol):
    """A launched worker: the API server's process and everything in its session."""

    @property
    def pid(self) -> int:
        """Of the API server; also the id of its session and process group."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit status once known (negative: the signal), None while it runs."""
        ...

    async def wait(self) -> int:
        """Until the API server exits; its exit status."""
        ...

    def terminate(self) -> None:
        """SIGTERM to the API server alone (workers below it would exit at once and cut its requests)."""
        ...

    def kill_group(self) -> None:
        """SIGKILL to the whole process group."""
        ...

    async def sweep(self, deadline_s: float) -> tuple[int, ...]:
        """Kill until no live process of the session is left; the pids that survived `deadline_s`."""
        ...

    def listens_on(self, address: WorkerAddress) -> bool | None:
        """Is the listening socket ours? False: another process answers there. None: this system cannot tell."""
        ...


class Launcher(Protocol):
    """Starts processes."""

    async def launch(self, command: CommandLine, log_file: Path) -> WorkerProcess:
        """
        Start in a session of its own, output appended to `log_file`.

        Raises:
            WorkerStartError: the interpreter is missing or cannot be run.
        """
        ...


class PortReserver(Protocol):
    """Finds free ports."""

    def reserve(self) -> int:
        """A loopback TCP port on which nothing listens and which no other worker of ours was given."""
        ...

    def claim(self, port: int) -> None:
        """An adopted worker already listens on `port`."""
        ...

    def release(self, port: int) -> None:
        """The worker that was given `port` is gone."""
        ...


class EngineFlags(Protocol):
    """Which optional flags an engine knows."""

    async def known(self, python: Path) -> frozenset[str]:
        """Those of `command_line.OPTIONAL_FLAGS` that the engine of this interpreter knows; never fails."""
        ...

    def forget(self, python: Path, flags: frozenset[str]) -> None:
        """The engine refused them, whatever was found: do not give them again."""
        ...


class GpuLease(Protocol):
    """GPUs that one launch holds."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """Their indices in PCI bus order."""
        ...

    @property
    def memory_share(self) -> float | None:
        """What the launch may take of each GPU's memory, where the size of its KV cache is exact; else None."""
        ...

    def started(self) -> None:
        """The start is over, READY or not: another worker may start on these GPUs now. Safe to call again."""
        ...

    def start_failed(self, detail: str) -> None:
        """The start failed in a way that may be a GPU's fault; the second fast one in a row quarantines them."""
        ...

    def served(self) -> None:
        """The worker became READY: the GPUs are good."""
        ...

    async def release(self) -> None:
        """
        The whole session is dead: wait, for a limited time, until the memory is back at its level before the launch.

        GPUs whose memory does not come back are quarantined. Safe to call again.
        """
        ...


class GpuLeases(Protocol):
    """Shares the GPUs out."""

    async def acquire(self, spec: WorkerSpec, waiting: Callable[[str], None]) -> GpuLease:
        """
        GPUs for one launch. While none is free, waits, and tells `waiting` in a sentence who holds what.

        Raises:
            WorkerStartError: no wait can help: this machine has not what the specification asks for.
        """
        ...

    def adopt(self, spec: WorkerSpec, gpus: tuple[int, ...]) -> GpuLease:
        """GPUs that an adopted worker holds already; never refused."""
        ...


Preflight = Callable[[WorkerSpec], Awaitable[Sequence[ConfigurationError]]]
"""A specification to what is bound to fail about it."""

ProberFactory = Callable[[WorkerAddress, str | None, str], Prober]
"""(address, key, served model name) to a prober."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerServices:
    """
    Everything a worker's task uses besides its specification.

    `environ` is the supervisor's own environment, from which a named few variables pass through. `sleep` and `clock`
    belong together: a test moves both. `random` is jitter only. `new_launch_id` must never repeat. Without `gpus` a
    worker takes the GPUs of its specification; without `flags` no optional flag is given. `preflight` says what is
    bound to fail about a specification, before its process is started. `log_max_bytes` is where a log is cut.
    """

    launcher: Launcher
    prober: ProberFactory
    ports: PortReserver
    environ: Mapping[str, str]
    new_launch_id: Callable[[], str]
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    random: Random = field(default_factory=Random)
    gpus: GpuLeases | None = None
    flags: EngineFlags | None = None
    preflight: Preflight | None = None
    log_max_bytes: int = MAX_BYTES
