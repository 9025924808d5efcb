"""One launch of a worker, from the first process to the last one gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import anyio

from gateway.errors import ConfigurationError, GatewayError, WorkerStartError
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.adoption import Adoption
from gateway.workers.board import StatusBoard
from gateway.workers.command_line import command_line
from gateway.workers.failures import BAD_FLAG, MAYBE_THE_GPU, StartFailure, classify_crash
from gateway.workers.inbox import Inbox, Order, WorkerCommand, first
from gateway.workers.lifecycle import LifeEvent
from gateway.workers.log_file import LogFile
from gateway.workers.log_tail import LogTail
from gateway.workers.phases import LAUNCHED
from gateway.workers.running import Running
from gateway.workers.scratch import make_scratch, remove_scratch
from gateway.workers.services import GpuLease, Prober, WorkerProcess, WorkerServices
from gateway.workers.serving import EXITED, Serving
from gateway.workers.spec import WorkerSpec
from gateway.workers.starting import StartFailed, Starting

Answer = TypeVar("Answer")

TERM_DEADLINE_S = 15.0
"""From SIGTERM to SIGKILL: an idle worker takes three to ten seconds to go."""
SWEEP_DEADLINE_S = 10.0
SWEEP_AGAIN_S = 1.0
LAST_SWEEP_S = 20.0
"""For killing and sweeping when the owner is cancelled."""


@dataclass(frozen=True, slots=True)
class Ending:
    """
    How a launch ended: by an `order`, by a `failure`, or by both (the worker fell while it drained).

    `served_s`: seconds since it became READY, None when it never did.
    """

    order: Order | None = None
    failure: StartFailure | None = None
    served_s: float | None = None


class LaunchRun:
    """Runs one launch; used once, by the worker's own task."""

    def __init__(
        self,
        spec: WorkerSpec,
        services: WorkerServices,
        board: StatusBoard,
        inbox: Inbox,
        adopted: Adoption | None = None,
    ) -> None:
        self._adopted = adopted
        self._spec = spec
        self._services = services
        self._board = board
        self._inbox = inbox
        self._log = LogFile(spec.log_dir, spec.name, max_bytes=services.log_max_bytes)
        self._tail = LogTail(self._log.path)
        self._optional_flags: frozenset[str] = frozenset()
        # What is held, and given back at the end:
        self._port: int | None = None
        self._socket: Path | None = None
        self._process: WorkerProcess | None = None
        self._prober: Prober | None = None
        self._lease: GpuLease | None = None
        self._scratch: Path | None = None
        self.serving: Serving | None = None

    async def run(self) -> Ending:
        """
        Launch, serve, and bring down; when this returns nothing of the launch is left and the state is STOPPING.

        Cancelled, it kills the session before it lets the cancellation go on.
        """
        try:
            ending = await self._live()
            await self._give_gpus_back(ending)
            self._inbox.forget_exit()
        except BaseException:
            # Limited, because a process that hangs in the kernel must not keep the supervisor from its own end.
            with anyio.move_on_after(LAST_SWEEP_S, shield=True):
                await self._bring_down(LifeEvent.END, graceful=False)
            raise
        return ending

    async def _live(self) -> Ending:
        try:
            launched = await self._launch()
        except StartFailed as failed:
            await self._bring_down(LifeEvent.FALL, graceful=False)
            return Ending(failure=failed.failure)
        except (GatewayError, OSError) as exc:
            await self._bring_down(LifeEvent.FALL, graceful=False)
            permanent = isinstance(exc, WorkerStartError) and exc.permanent
            return Ending(failure=StartFailure("cannot_launch", f"The worker was not started: {exc}.", permanent))
        if isinstance(launched, Order):
            await self._bring_down(LifeEvent.END, graceful=False)
            return Ending(order=launched)
        address, process, prober = launched
        async with anyio.create_task_group() as group:
            group.start_soon(self._tell_exit, process)
            ending = await self._start_and_serve(address, process, prober)
            group.cancel_scope.cancel()
        return ending

    async def _launch(self) -> tuple[WorkerAddress, WorkerProcess, Prober] | Order:
        spec, services, adopted = self._spec, self._services, self._adopted
        now_s = services.clock.monotonic()
        launch_id = adopted.launch_id if adopted else services.new_launch_id()
        self._board.api_key = spec.api_key
        self._board.follow(
            LifeEvent.START,
            launch_id=launch_id,
            address=None,
            pid=None,
            started_at_s=now_s if adopted is None or adopted.started_at_s is None else adopted.started_at_s,
            phase=LAUNCHED.words,
            progress=LAUNCHED.progress,
            log_file=str(self._log.path),
            max_model_len=None,
            engine_version="",
        )
        if adopted is not None:
            address = self._take_over(adopted)
        else:
            ready = await self._prepare()
            if isinstance(ready, Order):
                return ready
            address = self._reserve_address(launch_id)
            self._log.set_aside()
            self._scratch = self._make_scratch(launch_id)
            command = command_line(
                ready,
                address,
                services.environ,
                known_flags=self._optional_flags,
                launch_id=launch_id,
                scratch_dir=self._scratch,
                memory_share=self._lease.memory_share if self._lease is not None else None,
            )
            self._board.show(LAUNCHED)
            self._process = await services.launcher.launch(command, self._log.path)
        assert self._process is not None
        self._prober = services.prober(address, spec.api_key, spec.model)
        self._board.set(address=address, pid=self._process.pid)
        return address, self._process, self._prober

    async def _prepare(self) -> WorkerSpec | Order:
        """
        What a launch needs besides a process: the blessing of the preflight, the engine's flags, and GPUs; the
        specification with the GPUs that it got, or the order that came meanwhile.

        Raises:
            StartFailed: the preflight found something.
        """
        spec, services = self._spec, self._services
        if services.preflight is not None:
            preflight = services.preflight
            problems = await self._unless_ordered(lambda: preflight(spec))
            if isinstance(problems, Order):
                return problems
            if problems:
                raise StartFailed(_refused(problems[0]))
        if services.flags is not None:
            flags = services.flags
            known = await self._unless_ordered(lambda: flags.known(spec.engine_python))
            if isinstance(known, Order):
                return known
            self._optional_flags = known
        # Who names devices by hand shares them out by hand.
        by_hand = bool(spec.mig_device) or "CUDA_VISIBLE_DEVICES" in spec.launch.env
        if services.gpus is not None and spec.variant == "cuda" and not by_hand:
            gpus = services.gpus
            lease = await self._unless_ordered(lambda: gpus.acquire(spec, self._show_waiting))
            if isinstance(lease, Order):
                return lease
            self._lease = lease
            self._board.set(gpus=lease.gpus)
            return replace(spec, gpus=lease.gpus)
        return spec

    async def _unless_ordered(self, question: Callable[[], Awaitable[Answer]]) -> Answer | Order:
        """The answer, or the order that came before it."""
        while True:
            order = self._inbox.take()
            if order is not None and order.command is not WorkerCommand.START:
                return order
            answered = await self._inbox.unless_urgent(question)
            if answered is not None:
                return answered.value

    def _show_waiting(self, sentence: str) -> None:
        self._board.set(phase=sentence, progress=None)

    def _take_over(self, adopted: Adoption) -> WorkerAddress:
        """Hold what the running worker holds, instead of launching one."""
        self._process = adopted.process
        self._scratch = adopted.scratch_dir
        if self._services.gpus is not None and adopted.gpus:
            self._lease = self._services.gpus.adopt(self._spec, adopted.gpus)
            self._board.set(gpus=adopted.gpus)
        if adopted.address.uds:
            self._socket = Path(adopted.address.uds)
        else:
            self._services.ports.claim(adopted.address.port)
            self._port = adopted.address.port
        self._tail.skip_to_recent()
        return adopted.address

    async def _tell_exit(self, process: WorkerProcess) -> None:
        await process.wait()
        self._inbox.process_exited()

    async def _start_and_serve(self, address: WorkerAddress, process: WorkerProcess, prober: Prober) -> Ending:
        running = Running(self._spec, self._services, self._board, self._inbox, process, prober, self._log, self._tail)
        starting = Starting(running, was_ready=self._adopted is not None and self._adopted.was_ready)
        try:
            begun = await starting.run(address)
        except StartFailed as failed:
            # Read before the kill: our own signal is not how the worker ended.
            status = process.returncode
            await self._bring_down(LifeEvent.FALL, graceful=False)
            cause = failed.failure or starting.failure(status, timed_out=failed.timed_out)
            return Ending(failure=self._without_flags(cause))
        if isinstance(begun, Order):
            await self._bring_down(LifeEvent.END, graceful=False)
            return Ending(order=begun)

        if self._lease is not None:
            self._lease.served()
        self.serving = Serving(running)
        self._board.follow(
            LifeEvent.WARM,
            phase="",
            progress=None,
            max_model_len=begun.max_model_len,
            engine_version=begun.engine_version,
        )
        ready_at_s = self._services.clock.monotonic()
        served = await self.serving.run()
        self.serving = None
        served_s = self._services.clock.monotonic() - ready_at_s
        status = process.returncode
        fell = served.failure is not None
        await self._bring_down(LifeEvent.FALL if fell else LifeEvent.END, graceful=not fell)
        failure = served.failure
        if failure is not None and failure.reason == EXITED:
            failure = classify_crash(list(self._tail.last_lines), model=self._spec.model, exit_status=status)
        return Ending(served.order, failure, served_s)

    async def _bring_down(self, event: LifeEvent, *, graceful: bool) -> None:
        """Out of the fleet, then out of the process table, then give back what was held. Safe to call again."""
        if self._board.state is not WorkerState.STOPPING:
            self._board.follow(event, phase="", progress=None)
        process = self._process
        if process is not None:
            if graceful and process.returncode is None:
                process.terminate()
                await self._wait_for_exit(process)
            process.kill_group()
            if not await self._sweep(process):
                # Something of it lives, and may hold the GPUs for as long as the machine is up.
                self._lease = None
            self._process = None
        if self._prober is not None:
            await self._prober.aclose()
            self._prober = None
        self._tail.drain()
        if self._scratch is not None:
            remove_scratch(self._scratch)
            self._scratch = None
        if self._port is not None:
            self._services.ports.release(self._port)
            self._port = None
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
            self._socket = None
        self._board.set(address=None, pid=None)

    async def _wait_for_exit(self, process: WorkerProcess) -> None:
        """Until the API server is gone, TERM_DEADLINE_S have passed, or somebody asks again for its end."""
        await first(lambda: self._services.sleep(TERM_DEADLINE_S), process.wait, self._inbox.ending)

    async def _sweep(self, process: WorkerProcess) -> bool:
        """
        Until no process of the session is left, however long that takes: what it holds is not free before. False when
        somebody asked for an end of the wait.

        A process that SIGKILL does not end hangs in the kernel (a GPU driver, a dead file server).
        """
        while survivors := await process.sweep(SWEEP_DEADLINE_S):
            pids = ", ".join(map(str, survivors))
            self._board.set(
                phase=f"waiting for process {pids} to die",
                last_failure=f"Process {pids} does not die from SIGKILL: it hangs in the kernel; see `dmesg`.",
            )
            if self._inbox.ending_waits():
                return False
            await self._services.sleep(SWEEP_AGAIN_S)
        return True

    async def _give_gpus_back(self, ending: Ending) -> None:
        """After a start that failed for a reason that may be theirs, with a word against them."""
        if self._lease is None:
            return
        failure = ending.failure
        if failure is not None and ending.served_s is None and failure.reason in MAYBE_THE_GPU:
            self._lease.start_failed(failure.root_cause or failure.sentence)
        self._board.set(phase=f"waiting for the memory of GPU {', '.join(map(str, self._lease.gpus))}")
        await self._lease.release()
        self._lease = None
        self._board.set(phase="", gpus=self._spec.gpus)

    def _without_flags(self, failure: StartFailure) -> StartFailure:
        """An optional flag of ours that the engine refused is not given again, and is no reason to give up."""
        refused = frozenset(flag for flag in self._optional_flags if flag in failure.root_cause)
        if failure.reason != BAD_FLAG or not refused or self._services.flags is None:
            return failure
        self._services.flags.forget(self._spec.engine_python, refused)
        return replace(
            failure,
            permanent=False,
            sentence=f"The engine does not know {', '.join(sorted(refused))}, which it can do without; it is started "
            "again without it.",
        )

    def _make_scratch(self, launch_id: str) -> Path:
        try:
            return make_scratch(self._spec.runtime_dir, launch_id)
        except FileNotFoundError as exc:
            raise WorkerStartError(
                f"the directory {self._spec.runtime_dir}, in which the gateway has its sockets, is gone",
                fix="restart the gateway",
            ) from exc

    def _reserve_address(self, launch_id: str) -> WorkerAddress:
        if self._spec.launch.transport == "tcp":
            self._port = self._services.ports.reserve()
            return WorkerAddress(host="127.0.0.1", port=self._port)
        # Not by the worker's name, which may be longer than a socket's path.
        self._socket = self._spec.runtime_dir / f"{launch_id[:8]}.sock"
        return WorkerAddress(uds=str(self._socket))


def _refused(problem: ConfigurationError) -> StartFailure:
    return StartFailure("refused", f"The worker was not started. {problem}.", permanent=True)
