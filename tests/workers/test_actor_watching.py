"""
A launched worker that serves: what takes it out of rotation, what has it replaced, and what is no reason for either.
"""

from __future__ import annotations

import pytest

from gateway.workers.actor import WorkerActor, WorkerCommand
from gateway.workers.services import ProbeFailure
from tests.workers.fakes import Stage
from tests.workers.owned import BACKOFF, DRAINING, READY, STARTING, STOPPED, STOPPING, UNHEALTHY, owned

pytestmark = pytest.mark.anyio


async def test_missed_probes_earn_patience(stage: Stage) -> None:
    """Two misses change nothing, three take it out of rotation, an answer brings it back."""
    async with owned(stage) as actor:
        stage.world.health = ProbeFailure("timeout")
        await stage.time.pass_(11)
        assert READY is actor.status.state
        await stage.time.pass_(5)
        assert UNHEALTHY is actor.status.state
        stage.world.health = None
        await stage.time.pass_(5)
        assert READY is actor.status.state
        assert [] == stage.launcher.last.signals


async def test_a_silent_worker_without_work_is_replaced_after_twice_the_patience(stage: Stage) -> None:
    """Six misses and no stream that moves: killed without being asked, started again."""
    async with owned(stage) as actor:
        stage.world.health = ProbeFailure("timeout")
        await stage.time.pass_(32)
        assert [STARTING, READY, UNHEALTHY, STOPPING, BACKOFF, STARTING] == stage.states()
        assert "TERM" not in stage.launcher.processes[0].signals
        assert (("unhealthy", 1),) == actor.status.restart_reasons


async def test_an_overloaded_worker_is_not_killed(stage: Stage) -> None:
    """Its probes time out, its streams move: out of rotation, but alive."""
    async with owned(stage) as actor:
        stage.world.health = ProbeFailure("timeout")
        for _ in range(120):
            actor.report_load(64, 0.2)
            await stage.time.pass_(1)
        assert UNHEALTHY is actor.status.state
        assert [] == stage.launcher.last.signals


async def test_an_engine_said_to_be_dead_is_replaced(stage: Stage) -> None:
    """/health 503 for ever (VLLM_KEEP_ALIVE_ON_ENGINE_DEATH): at once out of rotation, soon replaced."""
    async with owned(stage) as actor:
        stage.world.health = ProbeFailure("/health answered 503", dead=True)
        await stage.time.pass_(5.5)
        assert UNHEALTHY is actor.status.state
        await stage.time.pass_(10)
        assert [STARTING, READY, UNHEALTHY, STOPPING, BACKOFF] == stage.states()


async def test_a_reported_failure_is_a_reason_to_look_not_a_verdict(stage: Stage) -> None:
    """Gateway processes see more failures than there are; they cost a probe a second and none the patience."""
    async with owned(stage) as actor:
        stage.world.asked.clear()
        actor.report_failure("connect", "refused")
        await stage.time.pass_(0)
        assert ["health"] == stage.world.asked
        stage.world.health = ProbeFailure("timeout")
        for _ in range(400):
            actor.report_failure("connect", "refused")
            await stage.time.pass_(0.01)
        assert READY is actor.status.state
        assert 4 <= len(stage.world.asked) <= 6


async def test_reports_of_another_launch_are_ignored(stage: Stage) -> None:
    """They speak of a process that is gone."""
    async with owned(stage) as actor:
        stage.world.asked.clear()
        actor.report_failure("connect", "refused", launch_id="launch-0")
        actor.report_load(5, 500.0, launch_id="launch-0")
        await stage.time.pass_(0)
        assert [] == stage.world.asked
        assert READY is actor.status.state


async def hold_silent(stage: Stage, actor: WorkerActor, seconds: int) -> None:
    """`seconds` of load reports: three requests, no byte on any."""
    for _ in range(seconds):
        actor.report_load(3, None)
        await stage.time.pass_(1)


async def test_a_hung_worker_is_tested_then_replaced(stage: Stage) -> None:
    """Requests in flight, no byte, no step: tested, out of rotation, killed within the idle limit and 15 s."""
    async with owned(stage) as actor:
        stage.world.generate = ProbeFailure("not answered within 5 s")
        await hold_silent(stage, actor, 59)
        assert READY is actor.status.state
        await hold_silent(stage, actor, 4)
        assert [STARTING, READY, UNHEALTHY, STOPPING, BACKOFF] == stage.states()[:5]
        assert any("hung" in status.last_failure for status in stage.told)
        assert "KILL group" == stage.launcher.processes[0].signals[0]
        stage.world.generate = None
        await stage.time.pass_(60)
        assert ("hung", 1) in actor.status.restart_reasons


async def test_a_worker_whose_engine_steps_is_not_hung(stage: Stage) -> None:
    """A long prefill or a non-streamed answer sends no byte for minutes; the step counter tells."""
    async with owned(stage) as actor:
        for second in range(300):
            actor.report_load(1, None)
            stage.world.iterations = 100.0 + second
            await stage.time.pass_(1)
        assert READY is actor.status.state
        assert 1 == stage.world.asked.count("generate")


async def test_a_worker_that_answers_the_test_goes_back(stage: Stage) -> None:
    """Out of rotation only while it is doubted; the next test comes an idle limit later."""
    async with owned(stage) as actor:
        stage.world.generate = [ProbeFailure("not answered within 5 s")]
        await hold_silent(stage, actor, 62)
        assert [STARTING, READY, UNHEALTHY, READY] == stage.states()
        await hold_silent(stage, actor, 55)
        assert 3 == stage.world.asked.count("generate")
        await hold_silent(stage, actor, 8)
        assert 4 == stage.world.asked.count("generate")
        assert READY is actor.status.state


async def test_a_hang_test_is_broken_off_by_stop(stage: Stage) -> None:
    """STOP does not wait for a canary that nobody answers."""
    async with owned(stage) as actor:
        stage.world.hang = {"generate"}
        await hold_silent(stage, actor, 62)
        assert UNHEALTHY is actor.status.state
        actor.command(WorkerCommand.STOP, drain_s=0)
        await stage.time.pass_(1)
        assert [STARTING, READY, UNHEALTHY, DRAINING, STOPPING, STOPPED] == stage.states()


async def test_an_idle_worker_is_never_tested(stage: Stage) -> None:
    """Its token counters stay exactly what clients caused."""
    async with owned(stage) as actor:
        for _ in range(300):
            actor.report_load(0, 500.0)
            await stage.time.pass_(1)
        assert READY is actor.status.state
        assert 1 == stage.world.asked.count("generate")
        assert 0 == stage.world.asked.count("iterations")
