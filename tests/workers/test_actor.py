"""Every way through the life of a launched worker, constructed on stand-ins with time moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from gateway.config.settings import Launch, Watch
from gateway.errors import WorkerStartError
from gateway.types import WorkerState
from gateway.workers.actor import WorkerActor, WorkerCommand
from gateway.workers.services import ModelFacts, ProbeFailure
from gateway.workers.spec import WorkerSpec
from tests.workers.fakes import MODEL, Stage

pytestmark = pytest.mark.anyio

STOPPED, STARTING, READY, UNHEALTHY, DRAINING, STOPPING, BACKOFF, FAILED = WorkerState
REFUSED = ProbeFailure("connection refused")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@asynccontextmanager
async def owned(stage: Stage, spec: WorkerSpec | None = None) -> AsyncIterator[WorkerActor]:
    """An actor whose task runs; whatever the test did, nothing may be held afterwards."""
    actor = WorkerActor(spec or stage.spec(), stage.services, stage.told.append)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(actor.run)
            await stage.time.pass_(0)
            yield actor
            group.cancel_scope.cancel()
    assert stage.nothing_held()


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


async def test_the_log_of_the_crashed_run_is_kept(stage: Stage) -> None:
    """A restart must not destroy the evidence."""
    async with owned(stage) as actor:
        stage.log(["first run"])
        stage.launcher.last.exit(1)
        await stage.time.pass_(2)
        assert READY is actor.status.state
        assert "first run\n" == (stage.tmp_path / "logs" / f"{MODEL}-0.previous.log").read_text()
        assert 0 == Path(actor.status.log_file).stat().st_size  # noqa: ASYNC240


async def test_a_unix_socket_is_cleared_before_and_after(stage: Stage) -> None:
    """vLLM leaves its socket behind and cannot bind over it."""
    socket = stage.tmp_path / "run" / f"{MODEL}-0.sock"
    socket.parent.mkdir()
    socket.touch()
    async with owned(stage, stage.spec(launch=Launch(transport="uds"))) as actor:
        assert str(socket) == actor.view.address.uds
        assert not socket.exists()
        socket.touch()
    assert not socket.exists()
