"""Fakes of what a supervisor runs: workers that do what the test says, and a watcher that remembers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import anyio

from gateway.config.settings import Settings, Watch
from gateway.control.watcher import Addresses
from gateway.types import WorkerAddress, WorkerState, WorkerView
from gateway.workers.actor import OnChange, WorkerCommand
from gateway.workers.spec import WorkerSpec
from gateway.workers.status import WorkerStatus

FAKE_GATEWAY = [sys.executable, str(Path(__file__).with_name("fake_gateway.py"))]


def settings(**changes: object) -> Settings:
    """A configuration with one model `m`; ports are given by the system when the test passes port 0 itself."""
    document: dict[str, object] = {"models": {"m": {"model": "some/model"}}, "drain_timeout_s": 5}
    return Settings.model_validate(document | changes)


def on_free_ports(configured: Settings) -> Settings:
    """Both listening ports chosen by the kernel (0, which the file does not allow)."""
    return configured.model_copy(
        update={
            "listen": configured.listen.model_copy(update={"port": 0}),
            "admin": configured.admin.model_copy(update={"port": 0}),
        }
    )


def spec(name: str = "m-0", model: str = "m") -> WorkerSpec:
    """A worker that is never launched."""
    return WorkerSpec(name=name, model=model, watch=Watch(), drain_timeout_s=5, source="some/model")


class FakeWorker:
    """
    An `Actor` that the test moves by hand with `become`.

    It lets the test observe: commands in order, loads and failures that were reported, and whether `run` was cancelled
    instead of ending by SHUTDOWN. `obeys=False` ignores SHUTDOWN, as a hanging worker does.
    """

    def __init__(self, spec: WorkerSpec, on_change: OnChange, *, obeys: bool = True) -> None:
        self.spec = spec
        self._on_change = on_change
        self._obeys = obeys
        self._shutdown = anyio.Event()
        self.commands: list[WorkerCommand] = []
        self.loads: list[tuple[int, float | None]] = []
        self.failures: list[tuple[str, str, str | None]] = []
        self.cancelled = False
        self.ended = False
        self.status = WorkerStatus(
            name=spec.name,
            model=spec.model,
            state=WorkerState.STOPPED,
            launch_id="",
            address=None,
            changed_at_s=0.0,
        )

    @property
    def view(self) -> WorkerView:
        return WorkerView(
            name=self.spec.name,
            model=self.spec.model,
            state=self.status.state,
            launch_id=self.status.launch_id,
            address=self.status.address or WorkerAddress(),
            changed_at_s=self.status.changed_at_s,
            max_model_len=self.status.max_model_len,
            api_key=self.spec.api_key,
        )

    def become(self, state: WorkerState, **changes: object) -> None:
        """Change the state, as the worker's own task would, and say so."""
        self.status = replace(self.status, state=state, **changes)  # type: ignore[arg-type]
        self._on_change(self.status)

    async def run(self) -> None:
        try:
            await self._shutdown.wait()
        except BaseException:
            self.cancelled = True
            raise
        finally:
            self.ended = True

    def command(self, command: WorkerCommand, *, drain_s: float | None = None) -> None:
        self.commands.append(command)
        if command is WorkerCommand.SHUTDOWN and self._obeys:
            self._shutdown.set()

    def report_failure(self, kind: str, detail: str, *, launch_id: str | None = None) -> None:
        self.failures.append((kind, detail, launch_id))

    def report_load(self, in_flight: int, silent_s: float | None, *, launch_id: str | None = None) -> None:
        self.loads.append((in_flight, silent_s))


class Fleet:
    """Makes the fake workers and keeps them by name."""

    def __init__(self, *, obeys: bool = True) -> None:
        self.workers: dict[str, FakeWorker] = {}
        self._obeys = obeys

    def make(self, spec: WorkerSpec, on_change: OnChange) -> FakeWorker:
        """An actor factory."""
        worker = self.workers[spec.name] = FakeWorker(spec, on_change, obeys=self._obeys)
        return worker


class RecordingWatcher:
    """A `Watcher` that remembers what it was told, in order, and lets a test wait for a word."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.addresses = Addresses(public="", admin="")
        self.took_s: float | None = None
        self._told = anyio.Event()

    def _tell(self, word: str) -> None:
        self.words.append(word)
        told, self._told = self._told, anyio.Event()
        told.set()

    def listening(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self._tell("listening")

    def changed(self, statuses: Sequence[WorkerStatus]) -> None:
        self._tell("changed")

    def serving(self) -> None:
        self._tell("serving")

    def said(self, line: str) -> None:
        self._tell(f"said {line}")

    def stopping(self, reason: str) -> None:
        self._tell(f"stopping {reason}")

    def stopped(self, took_s: float, survivors: Sequence[int]) -> None:
        self.took_s = took_s
        self._tell("stopped")

    async def run(self) -> None:
        await anyio.sleep_forever()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until the condition holds, looked at whenever something is told."""
        while not condition():
            await self._told.wait()


class NoProcesses:
    """A front without gateway processes."""

    slots = ()
    crashes = 0


NO_PROCESSES = NoProcesses()


class NoAdmin:
    """An admin server that serves nobody."""

    async def serve(self, tcp: object, unix: object) -> None:
        await anyio.sleep_forever()
