"""A launched worker on its way to READY, or to the sentence that says why not."""

from __future__ import annotations

import pytest

from gateway.config.settings import Launch
from gateway.errors import WorkerStartError
from gateway.workers.services import ModelFacts, ProbeFailure
from tests.workers.fakes import MODEL, Stage
from tests.workers.owned import BACKOFF, FAILED, READY, REFUSED, STARTING, STOPPING, owned

pytestmark = pytest.mark.anyio


async def test_a_worker_is_ready_after_health_name_and_one_token(stage: Stage) -> None:
    """READY comes last, and the status then says what the worker is."""
    async with owned(stage) as actor:
        assert [STARTING, READY] == stage.states()
        assert ["health", "facts", "generate", "chat", "logprobs", "structured output"] == stage.world.asked
        assert (2048, "0.32.0", 4000) == (actor.status.max_model_len, actor.status.engine_version, actor.status.pid)
        assert actor.view.api_key == "worker-secret"
        assert actor.view.address.port in stage.ports.held
        assert "worker-secret" not in repr(actor.status) + repr(actor.spec) + repr(stage.launcher.commands)


async def test_a_worker_that_refuses_connections_is_still_starting(stage: Stage) -> None:
    """vLLM listens only when it can serve: refusal during the start means nothing."""
    stage.world.health = REFUSED
    async with owned(stage) as actor:
        await stage.time.pass_(600)
        assert actor.status.state is STARTING
        stage.world.health = None
        await stage.time.pass_(1)
        assert actor.status.state is READY


async def test_the_phase_follows_the_log(stage: Stage) -> None:
    """What the worker logs becomes words and a share, and READY clears both."""
    stage.world.health = REFUSED
    async with owned(stage) as actor:
        stage.log(
            ["INFO Starting to load model /models/smol...", "Loading safetensors checkpoint shards:  50% Completed"]
        )
        await stage.time.pass_(1)
        assert "loading weights, 50 %" == actor.status.phase
        assert actor.status.progress == pytest.approx(0.45)
        stage.world.health = None
        await stage.time.pass_(1)
        assert ("", None) == (actor.status.phase, actor.status.progress)


async def test_a_permanent_failure_is_not_tried_again(stage: Stage) -> None:
    """A flag the engine refuses: FAILED at once, with the key to change."""
    stage.world.health = REFUSED
    async with owned(stage) as actor:
        stage.log(["api_server.py: error: unrecognized arguments: --swap-space 4"])
        stage.launcher.last.exit(2)
        await stage.time.pass_(3600)
        assert [STARTING, STOPPING, FAILED] == stage.states()
        assert "--swap-space 4" in actor.status.last_failure
        assert f"models.{MODEL}.launch.extra_args" in actor.status.last_failure
        assert 1 == len(stage.launcher.processes)


async def test_a_missing_interpreter_is_told_and_not_tried_again(stage: Stage) -> None:
    """The launcher's own refusal is a failed start like any other."""
    stage.launcher.refuse = WorkerStartError("no such interpreter", fix="set engines.NAME.python", permanent=True)
    async with owned(stage) as actor:
        assert [STARTING, STOPPING, FAILED] == stage.states()
        assert "engines.NAME.python" in actor.status.last_failure


async def test_a_launcher_that_meets_a_full_disk_is_a_failed_start(stage: Stage) -> None:
    """An error of the system is told and tried again; it does not end the supervisor."""

    def full(process: object) -> None:
        raise OSError(28, "No space left on device")

    stage.launcher.prepare = full
    async with owned(stage) as actor:
        assert BACKOFF is actor.status.state
        assert "No space left on device" in actor.status.last_failure
        stage.launcher.prepare = lambda process: None
        await stage.time.pass_(1)
        assert READY is actor.status.state


async def test_a_start_that_takes_too_long_is_killed(stage: Stage) -> None:
    """The deadline ends a start that hangs; a starting worker gets no SIGTERM, which it would ignore."""
    stage.world.health = REFUSED
    async with owned(stage, stage.spec(launch=Launch(start_timeout_s=60))) as actor:
        stage.launcher.last.obeys_term = False
        await stage.time.pass_(60.5)
        assert BACKOFF is actor.status.state
        assert f"models.{MODEL}.launch.start_timeout_s" in actor.status.last_failure
        assert ["KILL group"] == stage.launcher.processes[0].signals


async def test_a_foreign_process_on_the_port_is_not_taken_for_the_worker(stage: Stage) -> None:
    """Whoever answers must be of our session; the worker gets another port."""
    stage.launcher.prepare = lambda process: setattr(process, "owns_socket", process.pid != 4000)
    async with owned(stage) as actor:
        assert [STARTING, STOPPING, BACKOFF] == stage.states()
        assert "Another process answers" in actor.status.last_failure
        await stage.time.pass_(1)
        assert READY is actor.status.state
        assert stage.world.addresses[0] != stage.world.addresses[1]
        assert (("port_in_use", 1),) == actor.status.restart_reasons


async def test_a_worker_with_another_name_is_refused_for_good(stage: Stage) -> None:
    """Answers would carry the wrong model name; only the configuration can mend that."""
    stage.world.facts = ModelFacts(names=("other",))
    async with owned(stage) as actor:
        assert FAILED is actor.status.state
        assert "--served-model-name" in actor.status.last_failure


async def test_a_worker_that_fails_its_warm_up_three_times_starts_again(stage: Stage) -> None:
    """Health and name are not enough to be READY."""
    stage.world.generate = ProbeFailure("500")
    async with owned(stage) as actor:
        await stage.time.pass_(1.2)
        assert [STARTING, STOPPING, BACKOFF] == stage.states()
        assert "one token" in actor.status.last_failure


async def test_a_unix_socket_is_named_after_its_launch_and_cleared_afterwards(stage: Stage) -> None:
    """A worker's name may be longer than a socket's path. vLLM leaves its socket behind."""
    socket = stage.tmp_path / "run" / "launch-1.sock"
    async with owned(stage, stage.spec(launch=Launch(transport="uds"))) as actor:
        assert str(socket) == actor.view.address.uds
        socket.touch()
    assert not socket.exists()


async def test_a_runtime_directory_that_is_gone_is_not_made_again(stage: Stage) -> None:
    """Somebody else could make one of that name below a temporary directory; the sentence says what mends it."""
    (stage.tmp_path / "run").rmdir()
    async with owned(stage) as actor:
        await stage.time.pass_(0.1)
        assert BACKOFF is actor.status.state
        assert "restart the gateway" in actor.status.last_failure
    assert not (stage.tmp_path / "run").exists()
