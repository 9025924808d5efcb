"""The view of the fleet: snapshots, names, readiness, waiting for a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from gateway.fleet import FleetView
from gateway.types import FleetSnapshot, WorkerState, WorkerView

pytestmark = pytest.mark.anyio

MakeSnapshot = Callable[..., FleetSnapshot]
MakeWorker = Callable[..., WorkerView]


@pytest.fixture
def view(clock: Any) -> FleetView:
    return FleetView(clock)


def test_an_older_snapshot_is_ignored(view: FleetView, snapshot: MakeSnapshot, worker: MakeWorker) -> None:
    """Versions only grow, whatever the order of arrival."""
    assert view.apply(snapshot(5, worker("llama-0")))
    assert not view.apply(snapshot(4))
    assert not view.apply(snapshot(5))

    assert ["llama-0"] == [member.view.name for member in view.members("llama")]


def test_a_new_snapshot_of_the_same_launch_keeps_its_counts(
    view: FleetView, snapshot: MakeSnapshot, worker: MakeWorker
) -> None:
    """A change of state is no new launch."""
    view.apply(snapshot(1, worker("llama-0")))
    view.members("llama")[0].enter(1000.0)

    view.apply(snapshot(2, worker("llama-0", WorkerState.UNHEALTHY)))

    assert 1 == view.in_flight
    assert WorkerState.UNHEALTHY is view.members("llama")[0].view.state


def test_names_and_aliases_mean_their_model_and_nothing_else_does(view: FleetView, snapshot: MakeSnapshot) -> None:
    """Exact match; before the first snapshot nothing is known."""
    assert view.resolve("llama") is None
    view.apply(snapshot(1))

    for name in ("llama", "default"):
        model = view.resolve(name)
        assert model is not None
        assert "llama" == model.name
    for name in ("", "Llama", "llama "):
        assert view.resolve(name) is None


@pytest.mark.parametrize(
    ("state", "ready_ago_s", "expected"),
    [
        (WorkerState.READY, None, True),
        (WorkerState.STARTING, 119.0, True),
        (WorkerState.BACKOFF, 1.0, True),
        (WorkerState.UNHEALTHY, 1.0, True),
        (WorkerState.STOPPING, 1.0, True),
        (WorkerState.STARTING, 120.0, False),
        (WorkerState.STARTING, None, False),
        (WorkerState.DRAINING, 1.0, False),
        (WorkerState.STOPPED, 1.0, False),
        (WorkerState.FAILED, 1.0, False),
    ],
)
async def test_ready_means_a_worker_serves_or_comes_back_soon(
    view: FleetView,
    snapshot: MakeSnapshot,
    worker: MakeWorker,
    state: WorkerState,
    ready_ago_s: float | None,
    expected: bool,
) -> None:
    """The rule of `/ready`, and the same for waiting: nobody waits for what does not come."""
    since_s = None if ready_ago_s is None else 1000.0 - ready_ago_s
    view.apply(snapshot(1, worker("llama-0", state, was_ready_at_s=since_s)))

    assert expected is view.ready


def test_not_ready_without_snapshot_while_draining_or_with_a_model_nobody_serves(
    clock: Any,
    snapshot: MakeSnapshot,
    worker: MakeWorker,
) -> None:
    """A process that knows nothing, or is told to go, takes no traffic."""
    assert not FleetView(clock).ready

    draining = FleetView(clock)
    draining.apply(snapshot(1, worker("llama-0"), draining=True))
    assert not draining.ready

    told = FleetView(clock)
    told.apply(snapshot(1, worker("llama-0")))
    assert told.ready
    told.drain()
    assert told.draining
    assert not told.ready

    empty = FleetView(clock)
    empty.apply(snapshot(1))
    assert not empty.ready


async def test_a_process_can_wait_for_its_first_snapshot(
    view: FleetView, snapshot: MakeSnapshot, worker: MakeWorker
) -> None:
    """Being told to drain is no snapshot; afterwards there is nothing to wait for."""
    known = anyio.Event()

    async def wait() -> None:
        await view.wait_for_snapshot()
        known.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            view.drain()
            await anyio.wait_all_tasks_blocked()
            assert not known.is_set()
            view.apply(snapshot(0))
        await view.wait_for_snapshot()

    assert known.is_set()
