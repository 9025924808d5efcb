"""Leases count exactly, whatever ends them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import anyio
import pytest

from gateway.fleet import FleetDispatcher, FleetView
from gateway.messages import WorkerFailure
from gateway.protocol.request import RequestView
from gateway.routing import Router
from gateway.types import CircuitState, FleetSnapshot, RetryReason, WorkerState, WorkerView

pytestmark = pytest.mark.anyio

NOBODY: frozenset[str] = frozenset()


class Fleet:
    """A view with two ready workers, its dispatcher, and what the dispatcher reported."""

    def __init__(self, clock: Any, gauges: Any, snapshot: Any, worker: Any) -> None:
        self.clock = clock
        self.gauges = gauges
        self.failures: list[WorkerFailure] = []
        self.view = FleetView(clock, gauges)
        self.view.apply(snapshot(1, worker("llama-0"), worker("llama-1")))
        self.dispatcher = FleetDispatcher(self.view, Router(), clock, self.failures.append)


@pytest.fixture
def fleet(clock: Any, gauges: Any, snapshot: Any, worker: Any) -> Fleet:
    return Fleet(clock, gauges, snapshot, worker)


def test_a_lease_counts_only_between_enter_and_exit(fleet: Fleet, request_view: RequestView) -> None:
    """Choosing counts nothing, entering one, leaving gives it back, leaving again changes nothing."""
    lease = fleet.dispatcher.lease("llama", request_view, NOBODY)
    assert lease is not None
    assert 0 == fleet.view.in_flight

    with lease:
        assert 1 == fleet.view.in_flight
        assert 1 == fleet.gauges.in_flight[lease.worker.name]
    lease.__exit__(None, None, None)

    assert 0 == fleet.view.in_flight
    assert {"llama-0": 0, "llama-1": 0} == fleet.gauges.in_flight


def test_a_lease_that_was_never_entered_counts_nothing(fleet: Fleet, request_view: RequestView) -> None:
    """Not even when it is left."""
    lease = fleet.dispatcher.lease("llama", request_view, NOBODY)
    assert lease is not None

    lease.__exit__(None, None, None)

    assert 0 == fleet.view.in_flight


def test_a_lease_is_entered_once_and_judged_once(fleet: Fleet, request_view: RequestView) -> None:
    """Anything else is a programming error, said as such, and the count stays exact."""
    lease = fleet.dispatcher.lease("llama", request_view, NOBODY)
    assert lease is not None

    with pytest.raises(RuntimeError, match="before it was entered"):
        lease.succeeded()
    with lease:
        with pytest.raises(RuntimeError, match="entered before"):
            lease.__enter__()
        lease.succeeded()
        with pytest.raises(RuntimeError, match="judged twice"):
            lease.failed("connect", "refused")

    assert (0, []) == (fleet.view.in_flight, fleet.failures)


async def test_counts_are_exact_under_random_cancellation(fleet: Fleet, request_view: RequestView) -> None:
    """Three hundred attempts cancelled, failed or finished at random moments: nothing stays in flight, ever."""
    chance = random.Random(1)
    scopes: list[anyio.CancelScope] = []
    inside = 0

    async def attempt() -> None:
        nonlocal inside
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            lease = fleet.dispatcher.lease("llama", request_view, NOBODY)
            assert lease is not None
            with lease:
                inside += 1
                try:
                    for _ in range(chance.randrange(8)):
                        await anyio.lowlevel.checkpoint()
                    lease.succeeded() if chance.random() < 0.5 else lease.failed("connect", "refused")
                finally:
                    inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(300):
            group.start_soon(attempt)
            if chance.random() < 0.5 and scopes:
                chance.choice(scopes).cancel()
            if chance.random() < 0.3:
                await anyio.lowlevel.checkpoint()
            assert inside == fleet.view.in_flight

    assert 0 == fleet.view.in_flight
    assert {0} == set(fleet.gauges.in_flight.values())


def test_a_lease_of_an_earlier_launch_never_touches_the_later_one(
    fleet: Fleet,
    request_view: RequestView,
    snapshot: Callable[..., FleetSnapshot],
    worker: Callable[..., WorkerView],
) -> None:
    """A replaced worker starts from zero; what ends on the old launch is neither counted nor judged on the new."""
    with ExitStack() as stack:
        old = []
        for _ in range(6):
            lease = fleet.dispatcher.lease("llama", request_view, NOBODY)
            assert lease is not None
            old.append(stack.enter_context(lease))
        fleet.view.apply(snapshot(2, worker("llama-0", launch="2"), worker("llama-1", launch="2")))
        assert {"llama-0": 0, "llama-1": 0} == fleet.gauges.in_flight
        assert 6 == fleet.view.in_flight
        for lease in old:
            lease.failed("connection_lost", "reset")

    assert 0 == fleet.view.in_flight
    assert {"llama-0": 0, "llama-1": 0} == fleet.gauges.in_flight
    assert {CircuitState.CLOSED} == set(fleet.gauges.circuits.values())
    assert {"1"} == {failure.launch_id for failure in fleet.failures}


def test_a_worker_that_vanishes_takes_its_gauges_to_rest(
    fleet: Fleet, request_view: RequestView, snapshot: Callable[..., FleetSnapshot], worker: Callable[..., WorkerView]
) -> None:
    """A lease on it still ends in peace."""
    with ExitStack() as stack:
        for _ in range(4):
            lease = fleet.dispatcher.lease("llama", request_view, frozenset({"llama-1"}))
            assert lease is not None
            stack.enter_context(lease).failed(RetryReason.CONNECT, "refused")
        assert (4, CircuitState.OPEN) == (fleet.gauges.in_flight["llama-0"], fleet.gauges.circuits["llama-0"])
        fleet.view.apply(snapshot(2, worker("llama-1")))
        assert 0 == fleet.gauges.in_flight["llama-0"]

    assert (0, CircuitState.CLOSED) == (fleet.gauges.in_flight["llama-0"], fleet.gauges.circuits["llama-0"])
    assert 0 == fleet.view.in_flight


def test_failures_open_the_circuit_and_send_requests_elsewhere(fleet: Fleet, request_view: RequestView) -> None:
    """Three failures of one worker: the other gets everything, although it is busier."""
    for _ in range(3):
        lease = fleet.dispatcher.lease("llama", request_view, frozenset({"llama-1"}))
        assert lease is not None
        with lease:
            lease.failed(RetryReason.CONNECT, "refused")
    with ExitStack() as stack:
        for _ in range(5):
            lease = fleet.dispatcher.lease("llama", request_view, NOBODY)
            assert lease is not None
            stack.enter_context(lease)
            assert "llama-1" == lease.worker.name

    assert CircuitState.OPEN is fleet.gauges.circuits["llama-0"]
    assert 3 == len(fleet.failures)


def test_neutral_ends_and_stale_connections_are_no_fault(fleet: Fleet, request_view: RequestView) -> None:
    """A client's departure, a 4xx, an idle connection the worker had closed: no circuit opens, nobody is told."""
    for number in range(60):
        lease = fleet.dispatcher.lease("llama", request_view, NOBODY)
        assert lease is not None
        with lease:
            if number % 2:
                lease.failed(RetryReason.STALE_CONNECTION, "closed while idle")

    assert {CircuitState.CLOSED} == set(fleet.gauges.circuits.values())
    assert [] == fleet.failures


def test_a_probe_whose_client_leaves_makes_room_for_the_next(fleet: Fleet, request_view: RequestView) -> None:
    """The suspected worker is tried again at once, not after another pause."""
    suspect, other = frozenset({"llama-1"}), frozenset({"llama-0"})
    for _ in range(3):
        lease = fleet.dispatcher.lease("llama", request_view, suspect)
        assert lease is not None
        with lease:
            lease.failed(RetryReason.CONNECT, "refused")
    fleet.clock.now_s += 60
    probe = fleet.dispatcher.lease("llama", request_view, suspect)
    assert probe is not None
    busy = fleet.dispatcher.lease("llama", request_view, other)
    assert busy is not None
    with busy:
        with probe:
            elsewhere = fleet.dispatcher.lease("llama", request_view, NOBODY)
            assert elsewhere is not None
            assert "llama-1" == elsewhere.worker.name

        again = fleet.dispatcher.lease("llama", request_view, NOBODY)

    assert again is not None
    assert "llama-0" == again.worker.name


def test_when_all_circuits_are_open_requests_go_through(fleet: Fleet, request_view: RequestView) -> None:
    """A suspicion about everybody is worth nothing; the lease says why it was given."""
    for name in ("llama-0", "llama-1"):
        for _ in range(3):
            lease = fleet.dispatcher.lease("llama", request_view, frozenset({"llama-0", "llama-1"} - {name}))
            assert lease is not None
            with lease:
                lease.failed(RetryReason.CONNECT, "refused")

    lease = fleet.dispatcher.lease("llama", request_view, NOBODY)

    assert lease is not None
    assert "fail_open" == lease.reason


def test_no_lease_without_a_ready_worker_outside_the_excluded(
    fleet: Fleet, request_view: RequestView, snapshot: Callable[..., FleetSnapshot], worker: Callable[..., WorkerView]
) -> None:
    """Excluded, not READY, or of an unknown model: None, and nothing is counted."""
    both = frozenset({"llama-0", "llama-1"})
    assert fleet.dispatcher.lease("llama", request_view, both) is None
    assert fleet.dispatcher.lease("gemma", request_view, NOBODY) is None
    for version, state in enumerate((state for state in WorkerState if state is not WorkerState.READY), start=2):
        fleet.view.apply(snapshot(version, worker("llama-0", state)))
        assert fleet.dispatcher.lease("llama", request_view, NOBODY) is None

    assert 0 == fleet.view.in_flight


def test_silence_is_counted_from_the_last_byte_or_the_start_of_work(fleet: Fleet, request_view: RequestView) -> None:
    """An idle worker is not silent; one that never answered is silent since it got work."""
    lease = fleet.dispatcher.lease("llama", request_view, frozenset({"llama-1"}))
    assert lease is not None
    assert [None, None] == [load.silent_s for load in fleet.view.loads()]
    with lease:
        fleet.clock.now_s += 7
        assert 7 == fleet.view.loads()[0].silent_s
        lease.progress(fleet.clock.now_s)
        fleet.clock.now_s += 2
        assert (1, 2) == (fleet.view.loads()[0].in_flight, fleet.view.loads()[0].silent_s)
    fleet.clock.now_s += 100
    again = fleet.dispatcher.lease("llama", request_view, frozenset({"llama-1"}))
    assert again is not None
    with again:
        assert 0 == fleet.view.loads()[0].silent_s
