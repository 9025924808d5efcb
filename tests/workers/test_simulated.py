"""The simulated engine under a worker's task: hangs of either process, ends of every kind, and its log."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest

from gateway.config.settings import Launch, Watch
from gateway.workers.actor import WorkerActor
from gateway.workers.process import session_members
from gateway.workers.spec import WorkerSpec
from tests.workers.test_processes import BACKOFF, FAILED, READY, owned, services, spec

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

HANG_IDLE_S = 3.0


def simulated(
    tmp_path: Path, *extra: str, command: tuple[str, ...] = ("-m", "loadtest.servers.simulator")
) -> WorkerSpec:
    """A worker of two processes, API server and EngineCore, that answers and streams."""
    watch = Watch(probe_interval_s=0.5, probe_timeout_s=10, hang_idle_s=HANG_IDLE_S, backoff_initial_s=0.1)
    return replace(
        spec(tmp_path, watch=watch),
        engine_python=Path(sys.executable),
        engine_command=("{python}", *command),
        launch=Launch(extra_args=["--sim-start-s", "0.2", *extra]),
    )


def process_of(session: int, name: str) -> psutil.Process:
    """The session's process of that kind."""
    processes = [psutil.Process(pid) for pid in session_members(session)]
    (found,) = [each for each in processes if (name in " ".join(each.cmdline()[-4:])) == (name == "EngineCore")][:1]
    return found


async def report_a_silent_request(actor: WorkerActor, since_s: float) -> None:
    """What gateway processes say once a second about one request that gets nothing."""
    while True:
        actor.report_load(1, time.monotonic() - since_s)
        await anyio.sleep(1)


@pytest.mark.parametrize("stopped", ["EngineCore", "simulator"])
async def test_a_stopped_process_is_found_out_killed_and_replaced(tmp_path: Path, stopped: str) -> None:
    """
    SIGSTOP of the engine (its API server goes on answering its probes) or of the API server (nothing answers): the
    whole tree is dead within the idle limit and 15 s, and another one serves.
    """
    async with owned(simulated(tmp_path)) as (actor, told):
        ready = await told.until(lambda status: status.state is READY)
        assert ready.pid is not None
        tree = session_members(ready.pid)
        assert 2 <= len(tree)
        victim = process_of(ready.pid, stopped)
        victim.send_signal(signal.SIGSTOP)
        since_s = time.monotonic()
        async with anyio.create_task_group() as group:
            group.start_soon(report_a_silent_request, actor, since_s)
            fallen = await told.until(lambda status: status.state is BACKOFF)
            assert time.monotonic() - since_s < HANG_IDLE_S + 15
            assert () == tuple(pid for pid in tree if pid in session_members(ready.pid))
            group.cancel_scope.cancel()
        assert "The worker hung" in fallen.last_failure
        again = await told.until(lambda status: status.state is READY)
        assert again.pid != ready.pid
        assert (("hung", 1),) == again.restart_reasons


async def test_an_idle_worker_that_is_stopped_for_a_while_is_left_alone(tmp_path: Path) -> None:
    """Nobody waits for it; it goes on when it is continued."""
    async with owned(simulated(tmp_path)) as (actor, told):
        ready = await told.until(lambda status: status.state is READY)
        assert ready.pid is not None
        engine = process_of(ready.pid, "EngineCore")
        engine.send_signal(signal.SIGSTOP)
        actor.report_load(0, None)
        with anyio.move_on_after(HANG_IDLE_S + 1.5):
            await told.until(lambda status: status.state is not READY)
        engine.send_signal(signal.SIGCONT)
        assert (READY, ready.pid) == (actor.status.state, actor.status.pid)


async def test_a_dead_engine_is_a_crash_although_the_status_is_zero(tmp_path: Path) -> None:
    """vLLM's API server ends by itself, with exit status 0."""
    async with owned(simulated(tmp_path)) as (_, told):
        ready = await told.until(lambda status: status.state is READY)
        assert ready.pid is not None
        process_of(ready.pid, "EngineCore").kill()
        fallen = await told.until(lambda status: status.state is BACKOFF)
        assert "exit status 0" in fallen.last_failure
        await told.until(lambda status: status.state is READY)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        ("bad-flag", "does not know the option"),
        ("tp-heads", "tensor_parallel_size"),
        ("context-too-long", "max_model_len"),
    ],
)
async def test_a_start_that_cannot_succeed_is_given_up_at_once(tmp_path: Path, failure: str, sentence: str) -> None:
    """One process, FAILED, the key."""
    async with owned(simulated(tmp_path, "--sim-fail-start", failure)) as (_, told):
        failed = await told.until(lambda status: status.state in (FAILED, BACKOFF))
        assert FAILED is failed.state
        assert sentence in failed.last_failure
        assert 1 == len(told.sessions)


async def test_the_launch_template_places_the_model(tmp_path: Path) -> None:
    """`... serve MODEL` as vLLM's own command line wants it: no --model, the rest as ever; and it serves."""
    script = tmp_path / "vllm_cli.py"
    script.write_text(
        "import runpy, sys\n"
        "assert sys.argv[1] == 'serve' and '--model' not in sys.argv, sys.argv\n"
        "sys.argv[1:3] = ['--model', sys.argv[2]]\n"
        "runpy.run_module('loadtest.servers.simulator', run_name='__main__')\n"
    )
    async with owned(simulated(tmp_path, command=(str(script), "serve", "{model}"))) as (_, told):
        ready = await told.until(lambda status: status.state in (READY, BACKOFF, FAILED))
        assert READY is ready.state, ready.last_failure
        assert ready.pid is not None
        argv = psutil.Process(ready.pid).cmdline()
        assert "/models/fake" == argv[argv.index("serve") + 1]


async def test_the_log_is_cut_while_the_worker_writes(tmp_path: Path) -> None:
    """Bounded on the disk, and the worker goes on."""
    around = replace(services(), log_max_bytes=1)
    async with owned(simulated(tmp_path), around) as (actor, told):
        ready = await told.until(lambda status: status.state is READY)
        log, older = Path(ready.log_file), Path(ready.log_file + ".1")
        with anyio.fail_after(20):
            while not older.exists() or log.stat().st_size:  # noqa: ASYNC110, ASYNC240
                await anyio.sleep(0.05)
        assert "Application startup complete" in older.read_text()  # noqa: ASYNC240
        assert READY is actor.status.state
    assert {"fake-0.log", "fake-0.log.1"} == set(os.listdir(tmp_path / "logs"))
