"""Permits and waiting in one gateway process."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from gateway.admission import QueueLimits
from gateway.types import RejectionReason, WorkerState
from tests.admission.gateways import MODEL, Gateways, Request, served, waiting

Make = Callable[..., Gateways]


def test_as_many_as_there_are_permits_and_the_next_when_one_is_given_back(gateways: Make) -> None:
    """In order of arrival, at once, without waiting for a look; the depth of the queue is told."""
    fleet = gateways(limit=2)
    process = fleet.processes[0]
    requests = [process.request() for _ in range(5)]
    assert [True, True, False, False, False] == [request.lease is not None for request in requests]
    assert [1, 2, 3] == process.depths

    requests[1].finish()
    assert [requests[0], requests[2]] == served(requests)
    requests[0].finish()
    assert [requests[2], requests[3]] == served(requests)
    assert [2] == fleet.sums()

    for request in requests:
        request.leave()
    fleet.assert_idle()


def test_a_permit_that_is_granted_is_held_until_its_exchange_runs(gateways: Make) -> None:
    """Between the grant and the moment at which it is used nobody else gets it, newcomers least of all."""
    fleet = gateways(limit=1)
    process = fleet.processes[0]
    first, second = process.request(), process.request()
    process.asleep = True
    first.finish()

    assert (1, [1]) == (second.woken, fleet.sums())
    third = process.request()
    assert third.waiting
    second.go_on()
    assert (second.lease is not None, third.waiting, [1]) == (True, True, fleet.sums())

    process.asleep = False
    second.finish()
    third.finish()
    fleet.assert_idle()


def test_a_client_that_leaves_in_line_or_just_after_the_grant_costs_nothing(gateways: Make) -> None:
    """Its place is gone; what it was granted goes to the next in line at once."""
    fleet = gateways(limit=1)
    process = fleet.processes[0]
    first, second, third, fourth = (process.request() for _ in range(4))
    second.leave()
    assert [third, fourth] == waiting([second, third, fourth])
    process.asleep = True
    first.finish()
    assert 1 == third.woken
    process.asleep = False
    third.leave()

    assert fourth.lease is not None
    assert [1] == fleet.sums()
    fourth.finish()
    fleet.assert_idle()


def test_a_full_queue_turns_away_with_a_pause_from_the_measured_rate(gateways: Make) -> None:
    """429 and a reason; two a second come free and ten wait: come back in about five seconds. Those in line stay."""
    fleet = gateways(limit=1, limits=QueueLimits(max_queued=10))
    process = fleet.processes[0]
    running = process.request()
    for _ in range(40):
        fleet.clock.advance(0.5)
        running.finish()
        running = process.request()
    line = [process.request() for _ in range(10)]
    refused = process.request().refused

    assert refused is not None
    assert (429, "requests", "queue_full", RejectionReason.QUEUE_FULL) == (
        refused.status,
        refused.type,
        refused.code,
        refused.reason,
    )
    assert refused.retry_after_s is not None
    assert 4 < refused.retry_after_s < 6.5
    assert line == waiting(line)
    for request in (running, *line):
        request.leave()
    fleet.assert_idle()


def test_nobody_waits_where_nobody_may(gateways: Make) -> None:
    """A queue of length zero: a permit at once or 429; with no rate known the pause is a short one."""
    fleet = gateways(limit=1, limits=QueueLimits(max_queued=0))
    process = fleet.processes[0]
    first, second = process.request(), process.request()

    assert first.lease is not None
    assert second.refused is not None
    assert 5 == second.refused.retry_after_s
    first.finish()
    assert process.request().lease is not None


def test_who_waits_too_long_is_turned_away(gateways: Make) -> None:
    """Each at its own time, with 429; a permit that comes free a moment before is still granted."""
    fleet = gateways(limit=1, limits=QueueLimits(timeout_s=30))
    process = fleet.processes[0]
    first, second = process.request(), process.request()
    fleet.clock.advance(10)
    third = process.request()
    fleet.clock.advance(19.9)
    assert [second, third] == waiting([second, third])
    fleet.clock.advance(0.2)

    assert second.refused is not None
    assert (429, "queue_timeout") == (second.refused.status, second.refused.code)
    assert third.waiting
    fleet.clock.advance(9.8)
    first.finish()
    assert third.lease is not None
    third.finish()
    fleet.assert_idle()


def test_without_a_worker_there_is_no_waiting_unless_one_is_on_its_way(gateways: Make) -> None:
    """No permit either: 503 at once, or when hope ends; served within a look when it comes."""
    fleet = gateways(limit=2, limits=QueueLimits(timeout_s=30))
    process = fleet.processes[0]
    fleet.publish({"llama-0": WorkerState.FAILED})
    assert process.request().no_worker

    fleet.publish({"llama-0": WorkerState.STARTING})
    patient = [process.request() for _ in range(3)]
    assert patient == waiting(patient)
    fleet.clock.advance(60)
    assert patient == waiting(patient), "a restart may take longer than the wait for a permit"
    fleet.publish()
    fleet.clock.advance(0.01)
    assert [*patient[:2]] == served(patient)
    fleet.clock.advance(29.9)
    assert patient[2].waiting, "the wait for a permit begins when there are permits"

    fleet.publish({"llama-0": WorkerState.STARTING}, was_ready_at_s=fleet.clock.now_s)
    hopeful = process.request()
    fleet.clock.advance(0.02)
    assert hopeful.waiting
    fleet.publish({"llama-0": WorkerState.FAILED})
    fleet.clock.advance(0.01)
    assert (True, True) == (hopeful.no_worker, patient[2].no_worker)

    fleet.publish({"llama-0": WorkerState.STARTING}, was_ready_at_s=fleet.clock.now_s)
    vain = process.request()
    fleet.clock.advance(119)
    assert vain.waiting
    fleet.clock.advance(2)
    assert vain.no_worker
    for request in patient:
        request.finish()
    fleet.assert_idle()


def test_a_model_without_limit_waits_for_workers_only(gateways: Make) -> None:
    """Any number at a time; the bound of the queue holds for those who wait for a restart."""
    fleet = gateways(limit=0, limits=QueueLimits(max_queued=3))
    process = fleet.processes[0]
    running = [process.request() for _ in range(50)]
    assert running == served(running)
    fleet.publish({"llama-0": WorkerState.STARTING})
    line = [process.request() for _ in range(4)]
    assert line[:3] == waiting(line)
    assert line[3].refused is not None
    fleet.publish()
    fleet.clock.advance(0.01)

    assert line[:3] == served(line)
    for request in (*running, *line):
        request.finish()
    fleet.assert_idle()


@pytest.mark.parametrize("told", ["process", "fleet"])
def test_a_drain_empties_the_queue(gateways: Make, told: str) -> None:
    """Everybody in line gets 503 with a pause, within a look; what runs goes on; nobody new gets in."""
    fleet = gateways(limit=1)
    process = fleet.processes[0]
    running = process.request()
    line = [process.request() for _ in range(3)]
    if told == "process":
        process.view.drain()
    else:
        fleet.publish(draining=True)
    fleet.clock.advance(0.01)

    for request in line:
        assert request.refused is not None
        assert (503, "shutting_down", 1.0) == (
            request.refused.status,
            request.refused.code,
            request.refused.retry_after_s,
        )
    assert running.lease is not None
    late = process.request()
    assert late.refused is not None
    assert 503 == late.refused.status
    running.finish()
    fleet.assert_idle()


def test_a_retry_takes_no_permit_out_of_turn_and_loses_none(gateways: Make) -> None:
    """
    Its first permit is given back and goes to the first in line; the second it gets at another worker only, when one
    is free there, before those who came after it and after those who came before.
    """
    fleet = gateways(workers=2, limit=1)
    process = fleet.processes[0]
    first, second = process.request(), process.request()
    fleet.clock.advance(1)
    newcomers = [process.request() for _ in range(3)]
    assert {"llama-0", "llama-1"} == {first.worker, second.worker}
    failed_at = first.worker
    excluded = first.fail()
    assert newcomers[0].worker == failed_at, "the permit it gave back"
    assert [1, 1] == fleet.sums()

    first.ask(excluded, again=True)
    assert first.waiting
    newcomers[0].finish()
    assert newcomers[1].worker == failed_at, "what the retry must not use does not stand idle behind it"
    assert first.waiting
    other = second.worker
    second.finish()
    assert (first.worker, newcomers[2].waiting) == (other, True), "it came before"

    for request in (first, *newcomers):
        request.leave()
    fleet.assert_idle()


def test_a_retry_gets_in_when_the_queue_is_full_and_ends_where_there_is_no_other_worker(gateways: Make) -> None:
    """It was admitted once; and it is not made to wait for a worker on its way, because its failure can be told now."""
    fleet = gateways(workers=2, limit=1, limits=QueueLimits(max_queued=1))
    process = fleet.processes[0]
    first, second, third = (process.request() for _ in range(3))
    fourth = process.request()
    assert third.waiting
    assert fourth.refused is not None
    excluded = first.fail()
    fifth = process.request()
    assert fifth.waiting
    first.ask(excluded, again=True)
    assert first.waiting
    other = second.worker
    fleet.publish({other: WorkerState.STARTING})
    fleet.clock.advance(0.01)
    assert first.no_worker

    for request in (second, third, fifth):
        request.leave()
    fleet.assert_idle()


def test_a_look_costs_the_same_however_many_wait(gateways: Make) -> None:
    """Also while a retry waits, which has a prospect of its own: a look is made for every permit given back."""
    steps = []
    for count in (10, 500):
        fleet = gateways(workers=2, limit=1)
        process = fleet.processes[0]
        first, *others = (process.request() for _ in range(count))
        first.ask(first.fail(), again=True)
        assert (True, count - 3) == (first.waiting, len(waiting(others)))
        seen: list[str] = []
        room = process.admission._rooms[MODEL]
        sys.setprofile(lambda frame, event, argument, seen=seen: seen.append(event))
        try:
            room.look()
        finally:
            sys.setprofile(None)
        steps.append(len(seen))
        for request in (first, *others):
            request.leave()
        fleet.assert_idle()

    assert steps[0] == steps[1]


def test_a_full_worker_is_waited_for_rather_than_a_suspect_asked(gateways: Make) -> None:
    """An open circuit is tried when it is all there is, not because good workers are busy."""
    fleet = gateways(workers=2, limit=1)
    process = fleet.processes[0]
    for _ in range(3):
        request = Request(process).ask(frozenset({"llama-1"}))
        request.fail()
    good = process.request()
    assert "llama-1" == good.worker
    patient = process.request()
    fleet.clock.advance(0.5)
    assert patient.waiting
    good.finish()
    assert "llama-1" == patient.worker
    fleet.clock.advance(1.0)
    assert "llama-0" == process.request().worker, "the pause is over: one may try"


def test_a_storm_is_served_in_order_never_above_the_limit_and_without_idle_permits(gateways: Make) -> None:
    """
    Thousands of arrivals, ends, failures with retries and departures in random order. After each step: no worker has
    more than its limit, and nobody who could be served waits while a permit is free. First grants are in order of
    arrival. In the end everything is zero.
    """
    chance = random.Random(11)
    fleet = gateways(workers=3, limit=4, limits=QueueLimits(max_queued=40))
    process = fleet.processes[0]
    alive: list[Request] = []
    excluded: dict[Request, frozenset[str]] = {}
    arrivals: list[Request] = []
    for _ in range(6000):
        running = served(alive)
        step = chance.random()
        if step < 0.45 or not alive:
            request = process.request()
            alive.append(request)
            if request.waiting:
                arrivals.append(request)
        elif step < 0.8 and running:
            request = chance.choice(running)
            alive.remove(request)
            request.finish()
        elif step < 0.9 and running:
            request = chance.choice(running)
            excluded[request] = excluded.get(request, frozenset()) | request.fail()
            if len(excluded[request]) < 3:
                request.ask(excluded[request], again=True)
        else:
            request = chance.choice(alive)
            alive.remove(request)
            request.leave()
        fleet.clock.advance(chance.choice((0.0, 0.001, 0.02)))
        alive = [request for request in alive if request.waiting or request.lease is not None]
        in_line = waiting(alive)
        assert max(fleet.sums()) <= 4
        assert sum(fleet.sums()) == len(served(alive))
        for request in in_line:
            free = {name for name, used in zip(fleet.columns, fleet.sums(), strict=True) if used < 4}
            closed = {
                name
                for name in free
                if (member := process.view.member(name)) is not None and not member.breaker.admits(fleet.clock.now_s)
            }
            assert set() == free - excluded.get(request, frozenset()) - closed
        newcomers = [request for request in in_line if request not in excluded]
        waited = [request for request in arrivals if request in newcomers]
        assert waited == newcomers
    for request in alive:
        request.leave()
    fleet.assert_idle()
