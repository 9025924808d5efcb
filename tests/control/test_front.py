"""Gateway processes that are replaced, drained and killed: nobody is refused, nothing is left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import anyio
import httpx
import psutil
import pytest

from gateway.clock import SystemClock
from gateway.control.front import Front, FrontPlan, ReplacementFailed
from gateway.control.gateway_process import GatewayProcessBroken
from gateway.control.listeners import Listeners
from gateway.control.sockets import listen
from gateway.fleet import InFlightBoard
from gateway.log import EventLog
from gateway.messages import ToSupervisor
from gateway.metrics import Board, Layout, Totals
from tests.control.fakes import FAKE_GATEWAY

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


class Ears:
    """Remembers which processes spoke and which are gone."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self.spoke: list[int] = []
        self.gone_numbers: list[int] = []

    def message(self, slot: int, message: ToSupervisor) -> None:
        self.spoke.append(slot)

    def gone(self, slot: int, board: Board) -> None:
        self.gone_numbers.append(slot)
        self._totals.retire(board)


class Running:
    """A front; `pid` asks whichever process the kernel chooses."""

    def __init__(self, front: Front, ears: Ears, listeners: Listeners, totals: Totals) -> None:
        self.front = front
        self.ears = ears
        self.done = anyio.Event()
        self.broken: list[GatewayProcessBroken] = []
        self._totals = totals
        self._url = f"http://127.0.0.1:{listeners.of(0).getsockname()[1]}/"

    def plan(self, mode: str = "m", drain_timeout_s: float = 5, processes: int = 1) -> FrontPlan:
        return FrontPlan(
            processes=processes,
            argv=FAKE_GATEWAY,
            settings_json=json.dumps({"models": {mode: {}}}),
            keys_file="",
            workers=(),
            drain_timeout_s=drain_timeout_s,
            new_board=lambda: self._totals.create(Layout((mode,))),
        )

    async def pid(self) -> int:
        """The process that answers, over a new connection."""
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            return int((await client.get(self._url)).json())


@asynccontextmanager
async def running(mode: str = "m", drain_timeout_s: float = 5, processes: int = 1) -> AsyncIterator[Running]:
    totals = Totals()
    ears = Ears(totals)
    listeners = Listeners(listen("127.0.0.1", 0, key="listen", count=processes))
    in_flight = InFlightBoard.create()
    clock = SystemClock()
    broken: list[GatewayProcessBroken] = []
    front = Front(ears, in_flight, clock, EventLog(lambda line: None, clock), broken.append)
    run = Running(front, ears, listeners, totals)
    run.broken = broken
    front.open(listeners, run.plan(mode, drain_timeout_s, processes=processes))

    async def serve() -> None:
        await front.run()
        run.done.set()

    with closing(listeners), closing(in_flight), anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            try:
                yield run
            finally:
                front.kill()
                await run.done.wait()


async def test_a_replacement_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection before, during and after it is answered, first by the old process, then by the new one, which
    has another number."""
    async with running() as run:
        before = await run.pid()
        pids: list[int] = []
        replaced = anyio.Event()

        async def ask() -> None:
            while not replaced.is_set():
                pids.append(await run.pid())

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await run.front.replace(run.plan("m"))
            replaced.set()
        after = await run.pid()
        process = psutil.Process(before) if psutil.pid_exists(before) else None
        with anyio.fail_after(20):
            while 0 not in run.ears.gone_numbers:
                await anyio.lowlevel.checkpoint()

    assert before != after
    assert {before, after} >= set(pids)
    assert process is None or not process.is_running()
    assert [0, 1] == sorted(set(run.ears.spoke))


async def test_a_replacement_that_does_not_come_up_leaves_everything_as_it_is() -> None:
    """The old process was never told to stop, and it is not the supervisor's end."""
    async with running() as run:
        before = await run.pid()
        with pytest.raises(ReplacementFailed, match="exit code 3"):
            await run.front.replace(run.plan("dies"))

        assert before == await run.pid()
        assert [] == run.broken
        assert [before] == [slot.pid for slot in run.front.slots]


async def test_a_replaced_process_that_does_not_leave_is_killed() -> None:
    """It ignores its Drain; its deadline passes, and it is gone."""
    async with running("hangs") as run:
        before = psutil.Process(await run.pid())
        await run.front.replace(run.plan("m", drain_timeout_s=0))
        with anyio.fail_after(20):
            while 0 not in run.ears.gone_numbers:
                await anyio.lowlevel.checkpoint()

        assert not before.is_running()
        assert before.pid != await run.pid()


async def test_the_new_process_is_restarted_when_it_dies() -> None:
    async with running() as run:
        await run.pid()
        await run.front.replace(run.plan("m"))
        (slot,) = run.front.slots
        killed = slot.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        with anyio.fail_after(20):
            while slot.pid in (killed, None) or not slot.serving:
                await anyio.lowlevel.checkpoint()

        assert slot.pid == await run.pid()


@pytest.mark.parametrize("checkpoints", [0, 1, 2, 3, 5, 8, 13, 50])
async def test_a_drain_that_comes_while_the_process_is_started_is_not_lost(checkpoints: int) -> None:
    """At whatever moment: the process leaves at once, although it would have had ten minutes."""
    async with running() as run:
        for _ in range(checkpoints):
            await anyio.lowlevel.checkpoint()
        run.front.drain(600)
        with anyio.fail_after(20):
            await run.done.wait()

    assert run.ears.gone_numbers in ([], [0])
