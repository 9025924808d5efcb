"""A launched worker whose own task runs, on stand-ins with time moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from gateway.types import WorkerState
from gateway.workers.actor import WorkerActor
from gateway.workers.services import ProbeFailure
from gateway.workers.spec import WorkerSpec
from tests.workers.fakes import Stage

STOPPED, STARTING, READY, UNHEALTHY, DRAINING, STOPPING, BACKOFF, FAILED = WorkerState
REFUSED = ProbeFailure("connection refused")


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
