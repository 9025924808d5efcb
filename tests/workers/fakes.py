"""Stand-ins for everything a worker's task uses; each says what a test can observe and cause through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel

from gateway.clock import Clock
from gateway.config.settings import Launch, StaticWorker, Watch
from gateway.errors import WorkerStartError
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.command_line import CommandLine
from gateway.workers.services import (
    EngineFlags,
    GpuLeases,
    ModelFacts,
    Preflight,
    ProbeFailure,
    WorkerServices,
)
from gateway.workers.spec import WorkerSpec
from gateway.workers.status import WorkerStatus
from gateway.workers.warm_up import Feature

MODEL = "smol"


class FakeTime(Clock):
    """Time that stands still until `pass_` moves it; sleepers wake in the order in which they are due."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._sleepers: list[tuple[float, anyio.Event]] = []

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        sleeper = (self.now_s + seconds, anyio.Event())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self._sleepers.remove(sleeper)

    async def pass_(self, seconds: float) -> None:
        """Let `seconds` go by, and every task run as far as it can at each moment between."""
        until_s = self.now_s + seconds
        await _settled()
        while True:
            due = [sleeper for sleeper in self._sleepers if sleeper[0] <= until_s]
            if not due:
                break
            self.now_s = max(self.now_s, min(at_s for at_s, _ in due))
            for at_s, event in due:
                if at_s <= self.now_s:
                    event.set()
            await _settled()
        self.now_s = until_s
        await _settled()


class FakeProcess:
    """
    A worker's session. A test ends it with `exit`; signals are noted in `signals`, in order.

    `obeys_term` False: SIGTERM has no effect. `immortal`: sweeps report it as a survivor. `owns_socket`: what
    `listens_on` says. `orphans`: processes that live on until the group is killed.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._returncode: int | None = None
        self._exited = anyio.Event()
        self.signals: list[str] = []
        self.obeys_term = True
        self.immortal = False
        self.owns_socket: bool | None = True
        self.orphans = 2
        self.swept = False

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        return self._returncode

    def exit(self, status: int) -> None:
        """The API server exits; the rest of its session does not."""
        if self._returncode is None:
            self._returncode = status
            self._exited.set()

    async def wait(self) -> int:
        await self._exited.wait()
        assert self._returncode is not None
        return self._returncode

    def terminate(self) -> None:
        self.signals.append("TERM")
        if self.obeys_term:
            self.exit(0)

    def kill_group(self) -> None:
        self.signals.append("KILL group")
        if not self.immortal:
            self.orphans = 0
            self.exit(-9)

    async def sweep(self, deadline_s: float) -> tuple[int, ...]:
        if self.immortal:
            return (self._pid,)
        self.orphans = 0
        self.exit(-9)
        self.swept = True
        return ()

    def listens_on(self, address: WorkerAddress) -> bool | None:
        return self.owns_socket


class FakeLauncher:
    """
    Every launch is in `processes` and `commands`; `prepare` may change a process before it is handed out.

    `several`: the test has several workers, which may run side by side.
    """

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.commands: list[CommandLine] = []
        self.logs: list[Path] = []
        self.refuse: WorkerStartError | None = None
        self.several = False
        self.prepare: Callable[[FakeProcess], None] = lambda process: None

    async def launch(self, command: CommandLine, log_file: Path) -> FakeProcess:
        if self.refuse is not None:
            raise self.refuse
        dead = all(process.swept for process in self.processes)
        assert dead or self.several, "launched beside a session that is not dead"
        process = FakeProcess(4000 + len(self.processes))
        self.prepare(process)
        self._create(log_file)
        self.processes.append(process)
        self.commands.append(command)
        self.logs.append(log_file)
        return process

    @property
    def last_command(self) -> CommandLine:
        """Of the latest launch."""
        return self.commands[-1]

    def _create(self, log_file: Path) -> None:
        log_file.touch()

    @property
    def last(self) -> FakeProcess:
        """The latest launch."""
        return self.processes[-1]


@dataclass
class FakeWorld:
    """
    What the HTTP side of the workers says: set a field to a ProbeFailure (or a value) and the next question meets it; a
    list of failures is met one by one, then comes success.

    `asked` lists the questions in order; `hang` makes a question named there never return. `open_probers` must be 0
    when a worker is gone.
    """

    health: ProbeFailure | None = None
    facts: ModelFacts | ProbeFailure = field(
        default_factory=lambda: ModelFacts(names=(MODEL,), max_model_len=2048, engine_version="0.32.0")
    )
    generate: ProbeFailure | list[ProbeFailure] | None = None
    iterations: float | ProbeFailure | None = 100.0
    features: dict[str, ProbeFailure | list[ProbeFailure]] = field(default_factory=dict)
    not_offered: set[str] = field(default_factory=set)
    hang: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    open_probers: int = 0
    addresses: list[WorkerAddress] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def prober(self, address: WorkerAddress, api_key: str | None, model: str) -> FakeProber:
        self.addresses.append(address)
        self.keys.append(api_key)
        self.open_probers += 1
        return FakeProber(self)


class FakeProber:
    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    async def health(self) -> None:
        await self._ask("health", self._world.health)

    async def facts(self) -> ModelFacts:
        await self._ask("facts", self._world.facts)
        assert isinstance(self._world.facts, ModelFacts)
        return self._world.facts

    async def generate(self, timeout_s: float) -> None:
        await self._ask("generate", self._world.generate)

    async def try_feature(self, feature: Feature, timeout_s: float) -> bool:
        await self._ask(feature.name, self._world.features.get(feature.name))
        return feature.name not in self._world.not_offered

    async def iterations(self) -> float | None:
        await self._ask("iterations", self._world.iterations)
        assert not isinstance(self._world.iterations, ProbeFailure)
        return self._world.iterations

    async def aclose(self) -> None:
        self._world.open_probers -= 1

    async def _ask(self, question: str, answer: object) -> None:
        self._world.asked.append(question)
        if question in self._world.hang:
            await anyio.sleep_forever()
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        if isinstance(answer, ProbeFailure):
            raise answer


class FakePorts:
    """Counts up; `held` must be empty when no worker runs."""

    def __init__(self) -> None:
        self._next = 20001
        self.held: set[int] = set()

    def reserve(self) -> int:
        port, self._next = self._next, self._next + 1
        self.held.add(port)
        return port

    def claim(self, port: int) -> None:
        self.held.add(port)

    def release(self, port: int) -> None:
        self.held.remove(port)


async def _settled() -> None:
    """
    Until every other task waits for something.

    anyio.wait_all_tasks_blocked looks every 0.1 s, which makes an hour of worker's life last minutes.
    """
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(1000):
        if not ready:
            return
        await asyncio.sleep(0)


class NoJitter(Random):
    """The longest pause, always."""

    def random(self) -> float:
        return 1.0


@dataclass
class Stage:
    """All stand-ins of one test and what the worker's task told the world (`told`)."""

    tmp_path: Path
    time: FakeTime = field(default_factory=FakeTime)
    launcher: FakeLauncher = field(default_factory=FakeLauncher)
    world: FakeWorld = field(default_factory=FakeWorld)
    ports: FakePorts = field(default_factory=FakePorts)
    told: list[WorkerStatus] = field(default_factory=list)
    launches: int = 0
    gpus: GpuLeases | None = None
    flags: EngineFlags | None = None
    preflight: Preflight | None = None

    def __post_init__(self) -> None:
        (self.tmp_path / "run").mkdir()

    @property
    def services(self) -> WorkerServices:
        return WorkerServices(
            gpus=self.gpus,
            flags=self.flags,
            preflight=self.preflight,
            launcher=self.launcher,
            prober=self.world.prober,
            ports=self.ports,
            environ={"PATH": "/usr/bin"},
            new_launch_id=self._new_launch_id,
            clock=self.time,
            sleep=self.time.sleep,
            random=NoJitter(),
        )

    def spec(self, *, watch: Watch | None = None, launch: Launch | None = None, drain_s: float = 25) -> WorkerSpec:
        return WorkerSpec(
            name=f"{MODEL}-0",
            model=MODEL,
            source="/models/smol",
            watch=watch or Watch(),
            drain_timeout_s=drain_s,
            engine_python=Path("/engine/bin/python"),
            engine_command=("{python}", "-m", "vllm.entrypoints.openai.api_server"),
            launch=launch or Launch(),
            log_dir=self.tmp_path / "logs",
            runtime_dir=self.tmp_path / "run",
            api_key="worker-secret",
        )

    def static_spec(self, url: str = "http://10.0.0.7:8000", **more: object) -> WorkerSpec:
        static = StaticWorker.model_validate({"url": url, **more})
        return WorkerSpec(name=f"{MODEL}-static-0", model=MODEL, watch=Watch(), drain_timeout_s=25, static=static)

    def states(self) -> list[WorkerState]:
        """The states in the order in which they were told, repetitions left out."""
        states: list[WorkerState] = []
        for status in self.told:
            if not states or states[-1] is not status.state:
                states.append(status.state)
        return states

    def log(self, lines: Sequence[str]) -> None:
        """The worker of the latest launch writes `lines`."""
        with self.launcher.logs[-1].open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)

    def nothing_held(self) -> bool:
        """No port, no connection, no session is held."""
        swept = all(process.swept and not process.orphans for process in self.launcher.processes)
        return not self.ports.held and self.world.open_probers == 0 and swept

    def _new_launch_id(self) -> str:
        self.launches += 1
        return f"launch-{self.launches}"
