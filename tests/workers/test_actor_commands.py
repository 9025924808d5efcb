"""What an operator's commands, and the end of the gateway, do to a launched worker in each of its states."""

from __future__ import annotations

import anyio
import pytest

from gateway.config.settings import Watch
from gateway.workers.actor import WorkerActor, WorkerCommand
from gateway.workers.services import ProbeFailure
from tests.workers.fakes import Stage
from tests.workers.owned import BACKOFF, DRAINING, FAILED, READY, REFUSED, STARTING, STOPPED, STOPPING, owned

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("command", [WorkerCommand.STOP, WorkerCommand.DRAIN])
async def test_a_starting_worker_is_killed_not_asked(stage: Stage, command: WorkerCommand) -> None:
    """SIGTERM is lost during the start; STOP must not wait for a start to finish."""
    stage.world.hang = {"health"}
    async with owned(stage) as actor:
        actor.command(command)
        await stage.time.pass_(0)
        assert [STARTING, STOPPING, STOPPED] == stage.states()
        assert ["KILL group"] == stage.launcher.last.signals
        await stage.time.pass_(3600)
        assert 1 == len(stage.launcher.processes)


async def test_stop_waits_for_running_requests_then_asks_then_kills(stage: Stage) -> None:
    """DRAINING first, SIGTERM when nothing is in flight, and the group afterwards in any case."""
    async with owned(stage) as actor:
        actor.report_load(2, 0.1)
        actor.command(WorkerCommand.STOP)
        await stage.time.pass_(1)
        assert DRAINING is actor.status.state
        for _ in range(5):
            actor.report_load(1, 0.1)
            await stage.time.pass_(1)
        assert [] == stage.launcher.last.signals
        actor.report_load(0, None)
        await stage.time.pass_(1)
        assert [STARTING, READY, DRAINING, STOPPING, STOPPED] == stage.states()
        assert ["TERM", "KILL group"] == stage.launcher.last.signals


async def test_a_report_from_before_the_drain_does_not_end_it(stage: Stage) -> None:
    """A gateway process may dispatch on the old snapshot: an early zero is no proof."""
    async with owned(stage) as actor:
        actor.report_load(0, None)
        actor.command(WorkerCommand.STOP)
        await stage.time.pass_(0.5)
        actor.report_load(0, None)
        await stage.time.pass_(0.9)
        assert DRAINING is actor.status.state
        actor.report_load(1, 0.0)
        await stage.time.pass_(2)
        assert DRAINING is actor.status.state


async def test_the_drain_deadline_ends_the_wait(stage: Stage) -> None:
    """Streams that do not end within the drain time are cut."""
    async with owned(stage, stage.spec(drain_s=10)) as actor:
        actor.command(WorkerCommand.STOP)
        for _ in range(10):
            actor.report_load(3, 0.0)
            await stage.time.pass_(0.99)
        assert DRAINING is actor.status.state
        actor.report_load(3, 0.0)
        await stage.time.pass_(1.1)
        assert STOPPED is actor.status.state


async def test_a_second_stop_does_not_wait(stage: Stage) -> None:
    """Whoever asks twice wants it now."""
    async with owned(stage) as actor:
        actor.report_load(3, 0.0)
        actor.command(WorkerCommand.STOP)
        await stage.time.pass_(0)
        actor.command(WorkerCommand.STOP)
        await stage.time.pass_(0)
        assert STOPPED is actor.status.state


async def test_a_worker_that_ignores_sigterm_is_killed_at_the_deadline(stage: Stage) -> None:
    """vLLM's own drain may hang for ever while a client is connected."""
    async with owned(stage) as actor:
        stage.launcher.last.obeys_term = False
        actor.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(14.9)
        assert STOPPING is actor.status.state
        assert ["TERM"] == stage.launcher.last.signals
        await stage.time.pass_(0.2)
        assert STOPPED is actor.status.state
        assert ["TERM", "KILL group"] == stage.launcher.last.signals


async def test_a_start_order_while_stopping_waits_its_turn(stage: Stage) -> None:
    """The worker is stopped to the end, then started; the wait for its exit does not spin."""
    async with owned(stage) as actor:
        stage.launcher.last.obeys_term = False
        actor.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(1)
        actor.command(WorkerCommand.START)
        await stage.time.pass_(5)
        assert STOPPING is actor.status.state
        await stage.time.pass_(20)
        assert [STARTING, READY, DRAINING, STOPPING, STOPPED, STARTING, READY] == stage.states()


async def test_drain_keeps_the_process_and_start_takes_it_back(stage: Stage) -> None:
    """Out of rotation without losing minutes of model loading."""
    async with owned(stage) as actor:
        launch_id = actor.status.launch_id
        actor.command(WorkerCommand.DRAIN)
        await stage.time.pass_(3600)
        assert DRAINING is actor.status.state
        actor.command(WorkerCommand.START)
        await stage.time.pass_(0)
        assert (READY, launch_id) == (actor.status.state, actor.status.launch_id)
        assert [] == stage.launcher.last.signals


async def test_a_worker_that_falls_while_drained_stays_down(stage: Stage) -> None:
    """The operator took it out of use; the failure is told, nothing is started."""
    async with owned(stage) as actor:
        actor.command(WorkerCommand.DRAIN)
        await stage.time.pass_(1)
        stage.launcher.last.exit(0)
        await stage.time.pass_(3600)
        assert STOPPED is actor.status.state
        assert "exit status 0" in actor.status.last_failure
        assert 1 == len(stage.launcher.processes)


async def test_restart_is_a_stop_and_a_start(stage: Stage) -> None:
    """The old session is gone before the new one begins (the launcher asserts it)."""
    async with owned(stage) as actor:
        actor.command(WorkerCommand.RESTART, drain_s=0)
        await stage.time.pass_(1)
        assert [STARTING, READY, DRAINING, STOPPING, STOPPED, STARTING, READY] == stage.states()
        assert (("requested", 1),) == actor.status.restart_reasons


@pytest.mark.parametrize("fail", [False, True])
async def test_stop_ends_a_pause(stage: Stage, fail: bool) -> None:
    """A worker in BACKOFF or FAILED has no process; STOP makes it STOPPED at once and keeps it so."""
    stage.world.health = REFUSED
    async with owned(stage, stage.spec(watch=Watch(max_fast_failures=1 if fail else 5))) as actor:
        stage.launcher.last.exit(1)
        await stage.time.pass_(0)
        assert (FAILED if fail else BACKOFF) is actor.status.state
        actor.command(WorkerCommand.STOP)
        await stage.time.pass_(3600)
        assert STOPPED is actor.status.state
        assert 1 == len(stage.launcher.processes)


async def test_start_ends_a_pause(stage: Stage) -> None:
    """An operator need not wait for the back-off."""
    stage.world.health = REFUSED
    async with owned(stage) as actor:
        stage.launcher.last.exit(1)
        await stage.time.pass_(0)
        actor.command(WorkerCommand.START)
        await stage.time.pass_(0)
        assert STARTING is actor.status.state


async def test_shutdown_ends_the_task(stage: Stage) -> None:
    """run() returns, with the worker stopped and nothing held."""
    actor = WorkerActor(stage.spec(), stage.services, stage.told.append)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(actor.run)
            await stage.time.pass_(0)
            actor.command(WorkerCommand.SHUTDOWN, drain_s=0)
            await stage.time.pass_(1)
    assert STOPPED is actor.status.state
    assert stage.nothing_held()


@pytest.mark.parametrize("health", [None, REFUSED])
async def test_a_cancelled_task_kills_the_session_first(stage: Stage, health: ProbeFailure | None) -> None:
    """Starting or serving: no process outlives its owner."""
    stage.world.health = health
    async with owned(stage) as actor:
        pass
    assert STOPPED is actor.status.state
    assert "KILL group" in stage.launcher.last.signals
