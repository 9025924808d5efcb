"""
One client program against three endpoints: the scripted worker itself, then the gateway over each of its relay paths.

The servers live in this process, the client in its own, started once for all of its operations.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.types import ModelView
from loadtest.servers.fault_server import FaultServer
from tests.proxy import served
from tests.sdk import environment
from tests.sdk.scripted_worker import ScriptedWorker

HERE = Path(__file__).parent
TARGETS = ("direct", "gateway", "gateway, portable path")
CLIENT_LIMIT_S = 100.0
NOTICED_S = 5.0
"""Five times the promise that a worker's socket is closed a second after the client left."""


@dataclass
class Results:
    """What one client program printed: by operation, one result for each of `TARGETS`."""

    by_operation: dict[str, list[Any]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    sent: list[list[tuple[str, bytes]]] = field(default_factory=list)
    """What the workers behind each target received: path and body."""
    abandoned: list[int] = field(default_factory=list)
    """How many requests were left by the client; every one of them was closed in time at the worker."""


def command_of(client: str) -> list[str]:
    """How the client is started; skips the test, saying why, when this machine cannot run it."""
    if client == "node":
        modules = environment.built_node(os.environ)
        if modules is None:
            missing = environment.node_version(os.environ) is None
            cause = f"expected {environment.NO_NODE}" if missing else f"expected its modules: {environment.HOW}"
            pytest.skip(f"openai-node could not be run: {cause}")
        node = shutil.which("node")
        assert node is not None
        return [node, str(HERE / "node" / "client.mjs"), str(modules)]
    python = environment.built_python()
    if python is None:
        pytest.skip(f"{client} could not be run: expected the SDKs in {environment.PYTHON_FOLDER}: {environment.HOW}")
    return [str(python), str(HERE / "clients" / f"{client}.py")]


def client_environment(home: Path, **more: str) -> dict[str, str]:
    """Nothing of the machine but PATH: no proxy, no key, no configuration reaches a client."""
    return {
        **more,
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }


async def run_client(client: str, command: Sequence[str], home: Path) -> Results:
    """Everything the client printed; what it left open on a worker's side is a failure."""
    results = Results()
    workers: list[ScriptedWorker] = []
    servers: list[list[FaultServer]] = []
    models = (ModelView("sim", (), 2), ModelView("org/sim", (), 1))
    async with AsyncExitStack() as stack:
        urls = []
        for target in range(len(TARGETS)):
            worker = ScriptedWorker()
            workers.append(worker)
            count = 1 if target == 0 else 3
            started = [await stack.enter_async_context(FaultServer(worker.script)) for _ in range(count)]
            servers.append(started)
            if target == 0:
                urls.append(started[0].url)
                continue
            views = [
                served.worker_view(server, f"w{number}", model="org/sim" if number == 2 else "sim")
                for number, server in enumerate(started)
            ]
            running = await stack.enter_async_context(served.gateway(*views, direct=target == 1, models=models))
            urls.append(f"http://127.0.0.1:{running.port}")
            stack.push_async_callback(_idle, running, target)
        await _run(client, [*command, *urls], client_environment(home), home, results)
        async with asyncio.timeout(NOTICED_S):
            for worker in workers:
                for request in worker.abandoned:
                    await request.closed.wait()
        results.sent = [[(r.path, r.body) for server in started for r in server.requests] for started in servers]
        results.abandoned = [len(worker.abandoned) for worker in workers]
    return results


async def ask_with(
    client: str, urls: Sequence[str], home: Path, *, model: str, key: str, operations: Sequence[str]
) -> Results:
    """Some operations of a client against servers that run already, for `model` and with an API key they all take."""
    results = Results()
    environ = client_environment(home, SDK_MODEL=model, SDK_API_KEY=key, SDK_OPERATIONS=",".join(operations))
    await _run(client, [*command_of(client), *urls], environ, home, results)
    return results


async def _run(client: str, command: Sequence[str], environ: Mapping[str, str], home: Path, results: Results) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environ,
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(CLIENT_LIMIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{client} ended with {process.returncode}\n{err.decode()[-4000:]}"
    for line in out.split(b"\n"):
        if line.startswith(b'{"target"'):
            found = json.loads(line)
            results.by_operation.setdefault(found["operation"], []).append(found["result"])
            results.seconds.setdefault(found["operation"], []).append(found["seconds"])


async def _idle(running: served.Served, target: int) -> None:
    """Invariant 8, after every client."""
    try:
        async with asyncio.timeout(NOTICED_S):
            await running.idle()
    except TimeoutError:
        raise AssertionError(f"{TARGETS[target]}: still in flight after the client's end: {running.busy()}") from None
