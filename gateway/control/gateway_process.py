"""
One slot for a gateway process: start it, feed it, notice its end, start the next one.

The listening socket belongs to the supervisor and stays open whatever happens to the process, so clients that connect
between two processes wait in its backlog instead of being refused. Workers are not touched by any of this.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import anyio
import anyio.abc

from gateway.clock import Clock
from gateway.control.channel import Channel, ChannelBroken
from gateway.errors import GatewayError
from gateway.fleet import InFlightBoard
from gateway.log import EventLog
from gateway.messages import Configure, Drain, Hello, LoadReport, ToSupervisor
from gateway.metrics import Board
from gateway.metrics.catalogue import IN_FLIGHT
from gateway.setup.compiled import INTERPRETED, built
from gateway.types import FleetSnapshot

BACKOFF_INITIAL_S = 0.1
BACKOFF_MAX_S = 5.0
STABLE_AFTER_S = 30.0
# A gateway process that never once came up is a broken installation, not a crash: say so instead of trying for ever.
MAX_STARTS_WITHOUT_HELLO = 5
NOT_STARTED = 127
"""Stands for the exit code of a process that the system did not start; shells say the same."""
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE})
"""Ends that machine code brings about."""
# After its deadline a draining process has this long to leave before it is killed.
EXIT_GRACE_S = 2.0


class GatewayProcessBroken(GatewayError):
    """No gateway process of this slot has ever come up."""


class ProcessState(StrEnum):
    """What a slot's gateway process is doing."""

    STARTING = "starting"
    """It exists and does not accept yet; connections wait in its socket's queue."""
    SERVING = "serving"
    LEAVING = "leaving"
    """Replaced, or the gateway stops: it finishes what it has and exits."""
    BACKOFF = "backoff"
    """It died; the next one starts after a pause."""


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """
    What does not change between the processes of one slot.

    `argv` is the command without the descriptor options, `workers` are pairs of model and worker name, `new_board`
    makes the counters of one process, and in `in_flight` each process gets a row of its own.
    """

    slot: int
    listener: socket.socket
    argv: Sequence[str]
    settings_json: str
    keys_file: str
    workers: tuple[tuple[str, str], ...]
    drain_timeout_s: float
    new_board: Callable[[], Board]
    in_flight: InFlightBoard


class SlotEvents(Protocol):
    """What a slot tells its owner. Every call is quick and does not block."""

    def message(self, slot: int, message: ToSupervisor) -> None:
        """The gateway process said something."""
        ...

    def gone(self, slot: int, board: Board) -> None:
        """The process is gone, and with it everything it had in flight; it counts no more on `board`."""
        ...


def gateway_argv() -> list[str]:
    """
    The command of a real gateway process, in the interpreter that runs the supervisor. `-P`: the code is the installed
    one, and not what a folder called `gateway` holds where the supervisor was started.
    """
    return [sys.executable, "-P", "-m", "gateway.data_plane"]


class GatewaySlot:
    """
    Keeps one gateway process running in a slot until told to drain.

    `run` is the only writer of the state; the other methods leave a wish or read.
    """

    def __init__(self, plan: SlotPlan, events: SlotEvents, clock: Clock, log: EventLog) -> None:
        self._plan = plan
        self._events = events
        self._clock = clock
        self._log = log
        self._newest: FleetSnapshot | None = None
        self._channel: Channel | None = None
        self._process: anyio.abc.Process | None = None
        self._stop = anyio.Event()
        self._drain = Drain(deadline_s=0.0)
        self._hello = False
        self._ever_hello = False
        self._counters: Board | None = None
        self.restarts = 0
        self.since_s = clock.monotonic()
        """CLOCK_MONOTONIC seconds: when the state last changed."""
        self.connections = 0
        """Clients' connections, as of the process's last report (once a second)."""
        self.release = ""
        """The version of the process's code, once it has said so."""
        self.compiled = False
        """Whether its hot modules run compiled, once it has said so."""
        self._interpreted = plan.argv[-1] == INTERPRETED

    @property
    def slot(self) -> int:
        """The slot's number."""
        return self._plan.slot

    @property
    def state(self) -> ProcessState:
        """As of now."""
        if self._stop.is_set():
            return ProcessState.LEAVING
        if self._process is None:
            return ProcessState.BACKOFF if self.restarts else ProcessState.STARTING
        return ProcessState.SERVING if self._hello else ProcessState.STARTING

    @property
    def in_flight(self) -> int:
        """Requests the process has begun and not counted as ended."""
        if self._counters is None:
            return 0
        return int(sum(self._counters.cells[cell] for cell in self._counters.layout.offsets(IN_FLIGHT).values()))

    @property
    def pid(self) -> int | None:
        """The process's pid while it lives."""
        return self._process.pid if self._process is not None else None

    @property
    def serving(self) -> bool:
        """The process lives and has said that it listens."""
        return self._process is not None and self._hello

    @property
    def takes_clients(self) -> bool:
        """It serves, or its first process is being started: that one should get its share of those who wait already."""
        return self.serving or not (self._ever_hello or self.restarts)

    def publish(self, fleet: FleetSnapshot) -> None:
        """Give the process this snapshot, and the next process too if it dies."""
        self._newest = fleet
        if self._channel is not None:
            self._channel.send_snapshot(fleet)

    def drain(self, deadline_s: float, *, replaced: bool = False) -> None:
        """
        Stop accepting, finish what runs within `deadline_s`, exit; no next process. May be called again, shorter.

        `replaced`: another process accepts on the same socket.
        """
        self._leave()
        self._drain = Drain(deadline_s=deadline_s, replaced=replaced)
        if self._channel is not None:
            try:
                self._channel.send(self._drain)
            except ChannelBroken:
                self.kill()

    def kill(self) -> None:
        """End the process now; no next one follows."""
        self._leave()
        self._kill_process()

    async def run(self) -> None:
        """Keep a process in the slot until `drain` or `kill`; raises GatewayProcessBroken if none ever came up."""
        failures = 0
        while not self._stop.is_set():
            began_s = self._clock.monotonic()
            try:
                code = await self._one_process()
            except OSError as exc:  # no memory, no descriptors: it may pass, and the others go on
                self._log.event("gateway_process_not_started", level="error", slot=self._plan.slot, detail=str(exc))
                code = NOT_STARTED
            if self._stop.is_set():
                return
            lived_s = self._clock.monotonic() - began_s
            failures = 1 if self._hello and lived_s >= STABLE_AFTER_S else failures + 1
            if not self._ever_hello and failures >= MAX_STARTS_WITHOUT_HELLO:
                raise GatewayProcessBroken(
                    f"the gateway process ended {failures} times with exit code {code} before it listened; "
                    "what it said is on the standard error of `gateway up`; `gateway doctor` checks the installation"
                )
            pause_s = min(BACKOFF_INITIAL_S * 2 ** (failures - 1), BACKOFF_MAX_S)
            crashed = self.compiled and -code in CRASHES
            if not self._interpreted and (crashed or (not self._hello and built() is not None)):
                # Sources cannot crash an interpreter, compiled ones might; and a damaged build does not even start.
                self._interpreted = True
                self._log.event("compiled_modules_distrusted", level="error", slot=self._plan.slot, exit_code=code)
            self.restarts += 1
            self.since_s = self._clock.monotonic()
            self._log.event(
                "gateway_process_died",
                level="error",
                slot=self._plan.slot,
                exit_code=code,
                lived_s=round(lived_s, 3),
                pause_s=pause_s,
            )
            with anyio.move_on_after(pause_s):
                await self._stop.wait()

    async def _one_process(self) -> int:
        """Start a process, serve its channel until it is gone, and return its exit code."""
        plan = self._plan
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        board = plan.new_board()
        row = plan.in_flight.open_row()
        self._hello = False
        self.since_s = self._clock.monotonic()
        try:
            descriptors = (plan.listener.fileno(), theirs.fileno(), board.fd, plan.in_flight.fd)
            process = await anyio.open_process(
                [
                    *plan.argv,
                    *((INTERPRETED,) if self._interpreted and plan.argv[-1] != INTERPRETED else ()),
                    *("--listen-fd", str(descriptors[0])),
                    *("--control-fd", str(descriptors[1])),
                    *("--metrics-fd", str(descriptors[2])),
                    *("--in-flight-fd", str(descriptors[3])),
                ],
                stdin=subprocess.DEVNULL,
                stdout=None,
                stderr=None,
                pass_fds=descriptors,
                # Ctrl-C in a terminal goes to the whole foreground group; the supervisor decides when this one drains.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            plan.in_flight.zero_row(row)
            self._events.gone(plan.slot, board)
            raise
        finally:
            theirs.close()
        self._process = process
        self._counters = board
        self._channel = Channel(ours, self._received)
        try:
            self._channel.send(
                Configure(
                    settings_json=plan.settings_json,
                    slot=plan.slot,
                    keys_file=plan.keys_file,
                    workers=plan.workers,
                    row=row,
                )
            )
            if self._newest is not None:
                self._channel.send_snapshot(self._newest)
            if self._stop.is_set():  # while the process was being started
                self._channel.send(self._drain)
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve_channel, self._channel)
                code = await process.wait()
                group.cancel_scope.cancel()
            return code
        finally:
            self._kill_process()
            with anyio.CancelScope(shield=True):
                await process.wait()
                await process.aclose()
            self._channel = None
            self._process = None
            self._counters = None
            self.connections = 0
            # What it had in flight ended with it. Nobody writes the row any more: the process was waited for.
            plan.in_flight.zero_row(row)
            self._events.gone(plan.slot, board)

    async def _serve_channel(self, channel: Channel) -> None:
        try:
            await channel.run()
        except ChannelBroken as exc:
            self._log.event("gateway_process_channel_broken", level="error", slot=self._plan.slot, detail=str(exc))
            self._kill_process()
            return
        # A process without its channel drains by itself; one that does not leave is of no use to anybody.
        await anyio.sleep(self._plan.drain_timeout_s + EXIT_GRACE_S)
        self._log.event("gateway_process_left_channel", level="error", slot=self._plan.slot)
        self._kill_process()

    def _received(self, message: ToSupervisor) -> None:
        match message:
            case Hello():
                self._hello = self._ever_hello = True
                self.release = message.release
                self.compiled = message.compiled
                self.since_s = self._clock.monotonic()
                self._log.event(
                    "gateway_process_listening",
                    slot=self._plan.slot,
                    pid=message.pid,
                    release=message.release,
                    compiled=message.compiled,
                )
            case LoadReport():
                self.connections = message.connections
        self._events.message(self._plan.slot, message)

    def _leave(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self.since_s = self._clock.monotonic()

    def _kill_process(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
