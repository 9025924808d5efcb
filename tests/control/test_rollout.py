"""Rollouts over fake workers that the test moves by hand: order, minimum, the way back, and the words."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.config.settings import Launch
from gateway.control.operations import Operations
from gateway.control.pulse import Pulse
from gateway.control.rollout import Rollout
from gateway.control.roster import Roster
from gateway.types import WorkerState
from gateway.workers.actor import WorkerCommand
from gateway.workers.spec import WorkerSpec
from gateway.workers.status import WorkerStatus
from tests.control.fakes import FakeWorker, Fleet, spec

pytestmark = pytest.mark.anyio


def revision(spec: WorkerSpec) -> str:
    return f"{spec.launch.max_model_len}"


def specs(count: int, length: int | None = None, model: str = "m") -> list[WorkerSpec]:
    return [
        dataclasses.replace(spec(f"{model}-{index}", model), launch=Launch(max_model_len=length))
        for index in range(count)
    ]


class Scene:
    """A roster at work; every worker there is at the start is READY with launch id `old`."""

    def __init__(self, roster: Roster, fleet: Fleet, pulse: Pulse) -> None:
        self.roster = roster
        self.fleet = fleet
        self.pulse = pulse
        self.operations = Operations(lambda name, line, failed: None)

    def begin(self, goal: list[WorkerSpec], **options: object) -> None:
        rollout = Rollout(
            self.roster,
            goal,
            pulse=self.pulse,
            revision=revision,
            **options,  # type: ignore[arg-type]
        )
        self.operations.begin("reload", rollout.run)

    @property
    def lines(self) -> list[str]:
        return list(self.operations.latest.lines)

    def worker(self, name: str) -> FakeWorker:
        return self.fleet.workers[name]

    async def until(self, condition: Callable[[], bool]) -> None:
        """The tasks run until it holds."""
        with anyio.fail_after(20):
            while not condition():
                await anyio.lowlevel.checkpoint()

    async def rest(self) -> None:
        """Let every task run as far as it can."""
        for _ in range(50):
            await anyio.lowlevel.checkpoint()

    async def replaced(self, name: str, before: FakeWorker) -> FakeWorker:
        await self.until(lambda: self.worker(name) is not before)
        return self.worker(name)

    async def over(self) -> None:
        await self.until(lambda: not self.operations.latest.running)


@asynccontextmanager
async def scene(start: list[WorkerSpec]) -> AsyncIterator[Scene]:
    fleet, pulse = Fleet(), Pulse()

    def changed(status: WorkerStatus) -> None:
        pulse.beat()

    roster = Roster(start, fleet.make, changed)
    found = Scene(roster, fleet, pulse)
    for each in start:
        fleet.workers[each.name].become(WorkerState.READY, launch_id="old")
    async with anyio.create_task_group() as group:
        group.start_soon(roster.run)
        group.start_soon(found.operations.run)
        await anyio.wait_all_tasks_blocked()
        yield found
        group.cancel_scope.cancel()


async def test_workers_are_replaced_one_after_the_other() -> None:
    """The second goes out of rotation only when the first serves again."""
    async with scene(specs(2)) as run:
        first, second = run.worker("m-0"), run.worker("m-1")
        run.begin(specs(2, 9))
        new = await run.replaced("m-0", first)
        await run.rest()
        assert [WorkerCommand.SHUTDOWN] == first.commands
        assert [] == second.commands
        new.become(WorkerState.STARTING, launch_id="new")
        await run.rest()
        assert [] == second.commands
        new.become(WorkerState.READY)
        new = await run.replaced("m-1", second)
        new.become(WorkerState.READY, launch_id="new")
        await run.over()

    assert not run.operations.latest.failed
    assert [9, 9] == [actor.spec.launch.max_model_len for actor in run.roster.actors.values()]
    assert ["m-0: ready", "m-1: ready"] == [line for line in run.lines if "ready" in line]


async def test_a_worker_that_does_not_come_up_goes_back_and_the_others_stay() -> None:
    """The roll stops at the first failed start: old options for that worker, in words, exit as failed."""
    async with scene(specs(3)) as run:
        first = run.worker("m-0")
        run.begin(specs(3, 9))
        new = await run.replaced("m-0", first)
        new.become(WorkerState.STARTING, launch_id="new")
        new.become(WorkerState.BACKOFF, last_failure="No memory for the cache.")
        back = await run.replaced("m-0", new)
        back.become(WorkerState.READY, launch_id="back")
        await run.over()

    assert run.operations.latest.failed
    assert back.spec.launch.max_model_len is None
    assert [] == run.worker("m-1").commands == run.worker("m-2").commands
    text = "\n".join(run.lines)
    assert "m-0: does not start with the new options: No memory for the cache." in text
    assert "m-0: ready with the old options again" in text
    assert "not touched: m-1, m-2" == run.lines[-1]


async def test_even_the_way_back_may_fail() -> None:
    async with scene(specs(1)) as run:
        first = run.worker("m-0")
        run.begin(specs(1, 9))
        new = await run.replaced("m-0", first)
        new.become(WorkerState.FAILED, launch_id="new", last_failure="No.")
        back = await run.replaced("m-0", new)
        back.become(WorkerState.FAILED, launch_id="back", last_failure="Disk full.")
        await run.over()

    assert "m-0: does not start with the old options either: Disk full." in run.lines


async def test_another_model_goes_on_when_one_is_halted() -> None:
    async with scene([*specs(1), *specs(1, model="n")]) as run:
        m, n = run.worker("m-0"), run.worker("n-0")
        run.begin([*specs(1, 9), *specs(1, 9, "n")])
        new_m, new_n = await run.replaced("m-0", m), await run.replaced("n-0", n)
        new_m.become(WorkerState.FAILED, launch_id="new", last_failure="No.")
        back = await run.replaced("m-0", new_m)
        new_n.become(WorkerState.READY, launch_id="new")
        back.become(WorkerState.READY, launch_id="back")
        await run.over()

    assert [None, 9] == [actor.spec.launch.max_model_len for actor in run.roster.actors.values()]


async def test_workers_come_and_go() -> None:
    """One more of a model, another model's only worker away; a new one that fails is told and nothing goes back."""
    async with scene([*specs(1), *specs(1, model="n")]) as run:
        run.begin([*specs(2)])
        await run.until(lambda: "m-1" in run.fleet.workers and "n-0" not in run.roster.actors)
        run.worker("m-1").become(WorkerState.FAILED, launch_id="new", last_failure="No.")
        await run.over()

    assert ["m-0", "m-1"] == list(run.roster.actors)
    assert [WorkerCommand.SHUTDOWN] == run.worker("n-0").commands
    assert "m-1: does not start: No." in run.lines
    assert "n-0: stopped" in run.lines


async def test_a_stopped_worker_stays_stopped_and_takes_the_new_options_when_it_is_started() -> None:
    async with scene(specs(1)) as run:
        first = run.worker("m-0")
        first.become(WorkerState.STOPPED)
        run.begin(specs(1, 9))
        await run.over()
        assert [] == first.commands
        assert 9 == run.roster.spec("m-0").launch.max_model_len
        run.roster.command("m-0", WorkerCommand.START)
        new = await run.replaced("m-0", first)

    assert 9 == new.spec.launch.max_model_len
    assert "m-0 is stopped and stays so; its next start uses the new options" in run.lines


async def test_a_rolling_restart_commands_each_worker_in_turn() -> None:
    """The same actors, so that their counts go on; done when the launch is another one."""
    async with scene(specs(2)) as run:
        first, second = run.worker("m-0"), run.worker("m-1")
        run.begin(specs(2), restart=["m-0", "m-1"])
        await run.until(lambda: [WorkerCommand.RESTART] == first.commands)
        await run.rest()
        assert [] == second.commands
        first.become(WorkerState.STARTING, launch_id="new")
        first.become(WorkerState.READY)
        await run.until(lambda: [WorkerCommand.RESTART] == second.commands)
        second.become(WorkerState.READY, launch_id="new")
        await run.over()

    assert not run.operations.latest.failed


async def test_a_restart_that_does_not_come_back_spares_the_others() -> None:
    async with scene(specs(2)) as run:
        first, second = run.worker("m-0"), run.worker("m-1")
        run.begin(specs(2), restart=["m-0", "m-1"])
        await run.until(lambda: [WorkerCommand.RESTART] == first.commands)
        first.become(WorkerState.BACKOFF, launch_id="new", last_failure="It exited.")
        await run.over()

    assert [] == second.commands
    assert run.operations.latest.failed
    assert "m-0: does not come back: It exited." in run.lines


async def test_a_worker_stopped_by_an_operator_meanwhile_does_not_hold_the_roll() -> None:
    async with scene(specs(1)) as run:
        first = run.worker("m-0")
        run.begin(specs(1, 9))
        new = await run.replaced("m-0", first)
        new.become(WorkerState.STARTING, launch_id="new")
        new.become(WorkerState.STOPPED)
        await run.over()

    assert "m-0: stopped by somebody else meanwhile" in run.lines
