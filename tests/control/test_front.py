"""Gateway processes that are replaced, drained and killed: nobody is refused, nothing is left."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import httpx
import psutil
import pytest

from gateway.clock import SystemClock
from gateway.control.front import Front, FrontPlan, ReplacementFailed
from gateway.control.gateway_process import GatewayProcessBroken, ProcessState
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
        self.spoke: Counter[int] = Counter()
        self.gone_numbers: list[int] = []
        self.spoke_from_the_grave: list[int] = []

    def message(self, slot: int, message: ToSupervisor) -> None:
        self.spoke[slot] += 1
        if slot in self.gone_numbers:
            self.spoke_from_the_grave.append(slot)

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
        self.keys_file = ""
        self.argv = FAKE_GATEWAY
        self._totals = totals
        self._url = f"http://127.0.0.1:{listeners.of(0).getsockname()[1]}/"

    def plan(self, mode: str = "m", leave_timeout_s: float = 5, processes: int = 1) -> FrontPlan:
        return FrontPlan(
            processes=processes,
            argv=self.argv,
            settings_json=json.dumps({"models": {mode: {}}}),
            keys_file=self.keys_file,
            workers=(),
            drain_timeout_s=5,
            leave_timeout_s=leave_timeout_s,
            new_board=lambda: self._totals.create(Layout((mode,))),
        )

    async def pid(self) -> int:
        """The process that answers, over a new connection."""
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            return int((await client.get(self._url)).json())


@asynccontextmanager
async def running(
    mode: str = "m", leave_timeout_s: float = 5, processes: int = 1, keys_file: str = ""
) -> AsyncIterator[Running]:
    totals = Totals()
    ears = Ears(totals)
    listeners = Listeners(listen("127.0.0.1", 0, key="listen", count=processes))
    in_flight = InFlightBoard.create()
    clock = SystemClock()
    broken: list[GatewayProcessBroken] = []
    front = Front(ears, in_flight, clock, EventLog(lambda line: None, clock), broken.append)
    run = Running(front, ears, listeners, totals)
    run.broken = broken
    run.keys_file = keys_file
    front.open(listeners, run.plan(mode, leave_timeout_s, processes=processes))

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


async def test_a_process_that_the_system_does_not_start_is_no_end() -> None:
    """A program that is not there stands for no memory and no descriptors: the replacement fails, nobody else does."""
    async with running() as run:
        before = await run.pid()
        run.argv = ["/no/such/program"]
        with pytest.raises(ReplacementFailed, match="exit code 127"):
            await run.front.replace(run.plan())

        assert before == await run.pid()


async def test_a_replaced_process_that_does_not_leave_is_killed() -> None:
    """It ignores its Drain; its deadline passes, and it is gone."""
    async with running("hangs", leave_timeout_s=0) as run:
        before = psutil.Process(await run.pid())
        await run.front.replace(run.plan("m"))
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


async def test_a_damaged_build_does_not_keep_the_gateway_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled modules that cannot even be imported: the second process runs the sources, and serves."""
    monkeypatch.setattr("gateway.control.gateway_process.built", lambda: Path("a build"))
    async with running("damaged") as run:
        (slot,) = run.front.slots
        with anyio.fail_after(30):
            while not slot.serving:
                await anyio.lowlevel.checkpoint()

        assert (False, 1) == (slot.compiled, slot.restarts)
        assert slot.pid == await run.pid()


@pytest.mark.parametrize("end", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM])
async def test_compiled_modules_that_crash_their_process_are_not_trusted_again(end: signal.Signals) -> None:
    """After a crash that only machine code brings about the next process runs the sources; other ends prove nothing."""
    async with running() as run:
        (slot,) = run.front.slots
        with anyio.fail_after(20):
            while not slot.serving:
                await anyio.lowlevel.checkpoint()
        killed, before = slot.pid, slot.compiled
        assert killed is not None
        os.kill(killed, end)
        with anyio.fail_after(20):
            while slot.pid in (killed, None) or not slot.serving:
                await anyio.lowlevel.checkpoint()

        assert (True, end in (signal.SIGKILL, signal.SIGTERM)) == (before, slot.compiled)


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


async def test_a_dead_process_in_one_slot_is_replaced_there_and_no_other_is_touched() -> None:
    """Of four processes one is killed: the next one of its slot serves, and the others are the same as before."""
    async with running(processes=4) as run:
        with anyio.fail_after(20):
            while not all(slot.serving for slot in run.front.slots):
                await anyio.lowlevel.checkpoint()
        before = [slot.pid for slot in run.front.slots]
        killed = before[2]
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        with anyio.fail_after(20):
            while run.front.slots[2].pid in (killed, None) or not run.front.slots[2].serving:
                await anyio.lowlevel.checkpoint()
        after = [slot.pid for slot in run.front.slots]

        assert [0, 0, 1, 0] == [slot.restarts for slot in run.front.slots]
        assert [True, True, False, True] == [a == b for a, b in zip(before, after, strict=True)]
        assert [ProcessState.SERVING] * 4 == [slot.state for slot in run.front.slots]


async def test_nobody_is_sent_to_a_slot_whose_process_does_not_come_up_again(tmp_path: Path) -> None:
    """One of two dies, and so do all that follow it: from the moment that is noticed everybody meets the other one."""
    async with running("once", processes=2, keys_file=str(tmp_path / "marker")) as run:
        with anyio.fail_after(20):
            while not all(slot.serving for slot in run.front.slots):
                await anyio.lowlevel.checkpoint()
        good, bad = run.front.slots
        assert bad.pid is not None
        os.kill(bad.pid, signal.SIGKILL)
        with anyio.fail_after(20):
            while bad.serving:
                await anyio.lowlevel.checkpoint()
        pids = [await run.pid() for _ in range(20)]

        assert {good.pid} == {*pids}
        assert (True, False) == (good.serving, bad.serving)


async def test_more_and_fewer_processes_refuse_nobody() -> None:
    """From one to three and back to one, while somebody asks over new connections: everybody is answered."""
    async with running() as run:
        pids = {await run.pid()}
        over = anyio.Event()

        async def ask() -> None:
            while not over.is_set():
                pids.add(await run.pid())

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
            await run.front.replace(run.plan(processes=3))
            three = {slot.pid for slot in run.front.slots}
            with anyio.fail_after(20):
                while not pids >= three:
                    await anyio.lowlevel.checkpoint()
            await run.front.replace(run.plan(processes=1))
            over.set()

        (one,) = run.front.slots
        assert 3 == len(three)
        assert one.pid not in three
        assert {one.pid} == {await run.pid() for _ in range(20)}


async def test_a_replacement_of_which_only_a_part_comes_up_refuses_nobody() -> None:
    """The part that came up may have clients already: it leaves as a replaced process does, and the old ones stay."""
    async with running(processes=2) as run:
        with anyio.fail_after(20):
            while not all(slot.serving for slot in run.front.slots):
                await anyio.lowlevel.checkpoint()
        before = {slot.pid for slot in run.front.slots}
        over = anyio.Event()
        asked = 0

        async def ask() -> None:
            nonlocal asked
            while not over.is_set():
                await run.pid()
                asked += 1

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            with pytest.raises(ReplacementFailed, match="exit code 3"):
                await run.front.replace(run.plan("second-dies", processes=2))
            with anyio.fail_after(20):
                while run.front.leaving:
                    await anyio.lowlevel.checkpoint()
            over.set()

        assert asked > 0
        assert before == {slot.pid for slot in run.front.slots}
        assert before >= {await run.pid() for _ in range(10)}


async def test_a_process_that_is_gone_says_nothing_any_more() -> None:
    """It wrote until the last moment; nothing of that arrives after its end, when its row and counters are given up."""
    async with running("chatty", leave_timeout_s=0) as run:
        with anyio.fail_after(60):
            while run.ears.spoke[0] < 1000:
                await anyio.lowlevel.checkpoint()
        await run.front.replace(run.plan("m"))
        with anyio.fail_after(60):
            while 0 not in run.ears.gone_numbers or 1 not in run.ears.spoke:
                await anyio.lowlevel.checkpoint()

    assert [] == run.ears.spoke_from_the_grave


async def test_there_are_no_more_processes_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many that still leave: the replacement is refused in words, and what runs goes on."""
    monkeypatch.setattr("gateway.control.front.ROWS", 1)
    async with running() as run:
        before = await run.pid()
        with pytest.raises(ReplacementFailed, match="kill PID"):
            await run.front.replace(run.plan("m"))

        assert before == await run.pid()
