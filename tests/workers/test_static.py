"""A worker that somebody else runs: watched, never touched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.types import WorkerState
from gateway.workers.actor import Actor, StaticWorkerActor, WorkerActor, WorkerCommand, actor_for
from gateway.workers.services import ModelFacts, ProbeFailure
from gateway.workers.spec import WorkerSpec
from tests.workers.fakes import MODEL, Stage

pytestmark = pytest.mark.anyio

STOPPED, STARTING, READY, UNHEALTHY, DRAINING, STOPPING, BACKOFF, FAILED = WorkerState
REFUSED = ProbeFailure("connection refused")


@asynccontextmanager
async def owned(stage: Stage, spec: WorkerSpec | None = None) -> AsyncIterator[Actor]:
    actor = actor_for(spec or stage.static_spec(), stage.services, stage.told.append)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(actor.run)
            await stage.time.pass_(0)
            yield actor
            group.cancel_scope.cancel()
    assert 0 == stage.world.open_probers
    assert [] == stage.launcher.processes


async def test_it_is_ready_when_it_serves_the_name(stage: Stage) -> None:
    """No token is generated on a machine that is not ours."""
    async with owned(stage) as actor:
        assert [STARTING, READY] == stage.states()
        assert ["health", "facts"] == stage.world.asked
        assert actor.status.static
        assert ("10.0.0.7", 8000) == (actor.view.address.host, actor.view.address.port)


async def test_it_may_come_later(stage: Stage) -> None:
    """Until then it is STARTING, and the status says why."""
    stage.world.health = REFUSED
    async with owned(stage) as actor:
        await stage.time.pass_(3600)
        assert STARTING is actor.status.state
        assert "connection refused" in actor.status.last_failure
        stage.world.health = None
        await stage.time.pass_(5)
        assert READY is actor.status.state


async def test_it_goes_out_of_rotation_and_comes_back_as_another_launch(stage: Stage) -> None:
    """The process behind the URL may be a new one: connections and breakers of the old are worthless."""
    async with owned(stage) as actor:
        before = actor.status.launch_id
        stage.world.health = REFUSED
        await stage.time.pass_(9)
        assert READY is actor.status.state
        await stage.time.pass_(6)
        assert UNHEALTHY is actor.status.state
        await stage.time.pass_(3600)
        assert UNHEALTHY is actor.status.state
        stage.world.health = None
        await stage.time.pass_(5)
        assert READY is actor.status.state
        assert before != actor.status.launch_id


async def test_a_wrong_name_is_never_ready(stage: Stage) -> None:
    """Answers would carry another model's name; the sentence says how it must be started."""
    stage.world.facts = ModelFacts(names=("other",))
    async with owned(stage) as actor:
        await stage.time.pass_(60)
        assert STARTING is actor.status.state
        assert f"--served-model-name {MODEL}" in actor.status.last_failure


async def test_a_reported_failure_is_looked_at_at_once(stage: Stage) -> None:
    """Without waiting for the next probe, and not once for each of a hundred failures."""
    async with owned(stage) as actor:
        await stage.time.pass_(2)
        stage.world.asked.clear()
        for _ in range(100):
            actor.report_failure("connect", "refused")
            await stage.time.pass_(0)
        assert ["health", "facts"] == stage.world.asked
        await stage.time.pass_(1.1)
        assert ["health", "facts"] * 2 == stage.world.asked
        actor.report_load(5, 1e6)
        await stage.time.pass_(60)
        assert READY is actor.status.state


async def test_orders_only_change_whether_we_use_it(stage: Stage) -> None:
    """Drain, back, stop, start, restart: no process is touched."""
    async with owned(stage) as actor:
        for command, expected in (
            (WorkerCommand.DRAIN, DRAINING),
            (WorkerCommand.START, READY),
            (WorkerCommand.STOP, STOPPED),
            (WorkerCommand.START, READY),
            (WorkerCommand.RESTART, READY),
        ):
            actor.command(command)
            await stage.time.pass_(1)
            assert expected is actor.status.state
        actor.command(WorkerCommand.STOP)
        await stage.time.pass_(0)
        assert 0 == stage.world.open_probers


async def test_shutdown_ends_the_task(stage: Stage) -> None:
    """In the middle of a probe that hangs, too."""
    stage.world.hang = {"health"}
    actor = actor_for(stage.static_spec(), stage.services, stage.told.append)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(actor.run)
            await stage.time.pass_(0)
            actor.command(WorkerCommand.SHUTDOWN)
    assert STOPPED is actor.status.state
    assert 0 == stage.world.open_probers


async def test_the_key_comes_from_its_file(stage: Stage) -> None:
    """The first line, without its end; it is in the view and nowhere else."""
    key_file = stage.tmp_path / "key"
    key_file.write_text("static-secret\nmore\n")
    async with owned(stage, stage.static_spec(api_key_file=str(key_file))) as actor:
        assert ["static-secret"] == stage.world.keys
        assert "static-secret" == actor.view.api_key
        assert "static-secret" not in repr(actor.status)


@pytest.mark.parametrize("content", [None, "", "\n"])
async def test_a_key_file_without_a_key_is_a_failure_in_words(stage: Stage, content: str | None) -> None:
    """FAILED, with the file's name; START tries again once it is mended."""
    key_file = stage.tmp_path / "key"
    if content is not None:
        key_file.write_text(content)
    async with owned(stage, stage.static_spec(api_key_file=str(key_file))) as actor:
        assert FAILED is actor.status.state
        assert str(key_file) in actor.status.last_failure
        key_file.write_text("good")
        actor.command(WorkerCommand.START)
        await stage.time.pass_(0)
        assert READY is actor.status.state


async def test_a_bad_url_is_a_failure_in_words(stage: Stage) -> None:
    """Not an exception out of the supervisor."""
    async with owned(stage, stage.static_spec(url="gpu7:8000")) as actor:
        assert FAILED is actor.status.state
        assert "http://HOST:PORT" in actor.status.last_failure


def test_the_specification_chooses_the_actor(stage: Stage) -> None:
    """URL or process."""
    assert isinstance(actor_for(stage.static_spec(), stage.services, stage.told.append), StaticWorkerActor)
    assert isinstance(actor_for(stage.spec(), stage.services, stage.told.append), WorkerActor)
