"""A launched worker that ends by itself: what is started again, when, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.settings import Watch
from gateway.workers.actor import WorkerCommand
from tests.workers.fakes import MODEL, Stage
from tests.workers.owned import BACKOFF, FAILED, READY, REFUSED, STARTING, STOPPING, owned

pytestmark = pytest.mark.anyio


async def test_exit_status_zero_is_a_crash(stage: Stage) -> None:
    """vLLM exits with 0 when its engine dies; the session is swept and the worker comes back by itself."""
    async with owned(stage) as actor:
        first_id = actor.status.launch_id
        stage.launcher.last.exit(0)
        await stage.time.pass_(0.5)
        assert BACKOFF is actor.status.state
        assert "exit status 0" in actor.status.last_failure
        assert actor.status.address is None
        assert stage.launcher.processes[0].swept
        await stage.time.pass_(1)
        assert [STARTING, READY, STOPPING, BACKOFF, STARTING, READY] == stage.states()
        assert (1, (("exited", 1),)) == (actor.status.restarts, actor.status.restart_reasons)
        assert first_id != actor.status.launch_id
        assert actor.status.was_ready_at_s is not None
        assert "TERM" not in stage.launcher.processes[0].signals


async def test_the_pause_doubles_and_the_worker_is_given_up(stage: Stage) -> None:
    """Five failed starts in a row: 1, 2, 4, 8 s between them, then FAILED with the way back in words."""
    stage.world.health = REFUSED
    async with owned(stage) as actor:
        for pause_s in (1, 2, 4, 8):
            stage.launcher.last.exit(1)
            await stage.time.pass_(0)
            assert BACKOFF is actor.status.state
            launched = len(stage.launcher.processes)
            await stage.time.pass_(pause_s - 0.01)
            assert launched == len(stage.launcher.processes)
            await stage.time.pass_(0.02)
            assert launched + 1 == len(stage.launcher.processes)
        stage.launcher.last.exit(1)
        await stage.time.pass_(3600)
        assert FAILED is actor.status.state
        assert f"gateway workers start {MODEL}-0" in actor.status.last_failure
        assert 5 == len(stage.launcher.processes)

        actor.command(WorkerCommand.START)
        stage.world.health = None
        await stage.time.pass_(1)
        assert READY is actor.status.state


async def test_a_stable_period_clears_the_record(stage: Stage) -> None:
    """A worker that served for five minutes starts again after the first pause."""
    async with owned(stage, stage.spec(watch=Watch(max_fast_failures=2))) as actor:
        for _ in range(4):
            await stage.time.pass_(301)
            stage.launcher.last.exit(0)
            await stage.time.pass_(0)
            assert BACKOFF is actor.status.state
            await stage.time.pass_(1)
            assert READY is actor.status.state


async def test_the_log_of_the_crashed_run_is_kept(stage: Stage) -> None:
    """A restart must not destroy the evidence."""
    async with owned(stage) as actor:
        stage.log(["first run"])
        stage.launcher.last.exit(1)
        await stage.time.pass_(2)
        assert READY is actor.status.state
        assert "first run\n" == (stage.tmp_path / "logs" / f"{MODEL}-0.previous.log").read_text()
        assert 0 == Path(actor.status.log_file).stat().st_size  # noqa: ASYNC240


async def test_a_process_that_cannot_die_keeps_what_it_holds(stage: Stage) -> None:
    """No new launch, no released port, while the kernel still has the old session; the status says so."""
    async with owned(stage) as actor:
        process = stage.launcher.last
        process.immortal = True
        process.exit(0)
        await stage.time.pass_(60)
        assert STOPPING is actor.status.state
        assert str(process.pid) in actor.status.last_failure
        assert stage.ports.held
        assert 1 == len(stage.launcher.processes)
        process.immortal = False
        await stage.time.pass_(5)
        assert READY is actor.status.state
