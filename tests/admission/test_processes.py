"""Permits among several gateway processes: real boards and rooms, time moved by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from gateway.admission import QueueLimits
from gateway.fleet.member import CLAIM_SLACK_S, CLAIM_STANDS_S
from tests.admission.gateways import MODEL, Gateways, Process, Request, served, waiting

Make = Callable[..., Gateways]
LOOK_S = 0.01


def test_a_permit_given_back_elsewhere_is_found_within_a_look(gateways: Make) -> None:
    """The sum counts, not what this process has; at once here, within 10 ms in another process."""
    fleet = gateways(processes=2, limit=2)
    first, second = fleet.processes
    running = [first.request(), first.request()]
    patient = second.request()
    assert patient.waiting
    fleet.clock.advance(0.5)
    assert patient.waiting
    running[0].finish()
    fleet.clock.advance(LOOK_S)

    assert patient.lease is not None
    assert [2] == fleet.sums()
    running[1].finish()
    patient.finish()
    fleet.assert_idle()


def test_nobody_looks_while_nobody_waits(gateways: Make) -> None:
    """No timer at idle, none while everybody is served."""
    fleet = gateways(processes=2, limit=2)
    running = fleet.processes[0].request()
    assert 0 == fleet.clock.pending
    second, third = fleet.processes[1].request(), fleet.processes[1].request()
    assert (True, 1) == (third.waiting, fleet.clock.pending)
    third.leave()
    assert 0 == fleet.clock.pending
    running.finish()
    second.finish()
    fleet.assert_idle()


def storm(
    fleet: Gateways, *, users: dict[Process, int], seconds: float, service_s: float, seed: int
) -> Counter[Process]:
    """
    Closed-loop users: each asks again as soon as it was served. Returns grants by process.

    At every step the limit holds, and as long as there is demand it is reached but for moments.
    """
    chance = random.Random(seed)
    grants: Counter[Process] = Counter()
    until: dict[Request, float] = {}
    alive = {process: [process.request() for _ in range(count)] for process, count in users.items()}
    idle_steps = steps = 0
    end_s = fleet.clock.now_s + seconds
    while fleet.clock.now_s < end_s:
        fleet.clock.advance(0.002)
        for process, requests in alive.items():
            for index, request in enumerate(requests):
                if request.lease is not None and request not in until:
                    until[request] = fleet.clock.now_s + service_s * chance.uniform(0.5, 1.5)
                    grants[process] += 1
                elif request.lease is not None and until[request] <= fleet.clock.now_s:
                    request.finish()
                    requests[index] = process.request()
        steps += 1
        idle_steps += sum(fleet.sums()) < fleet.limit
        assert max(fleet.sums()) <= fleet.limit
    for requests in alive.values():
        for request in requests:
            request.leave()
    fleet.assert_idle()
    assert idle_steps < steps * 0.25
    return grants


def test_equal_demand_gets_equal_shares(gateways: Make) -> None:
    """Four processes with twenty users each at one worker with 32 permits: shares within a tenth."""
    fleet = gateways(processes=4, limit=32)
    grants = storm(fleet, users=dict.fromkeys(fleet.processes, 20), seconds=20, service_s=0.2, seed=1)

    assert 4 == len(grants)
    assert max(grants.values()) < 1.1 * min(grants.values())


def test_shares_follow_demand(gateways: Make) -> None:
    """The line is one by age, as if there were one process: three times the users get about three times as much."""
    fleet = gateways(processes=2, limit=8)
    much, little = fleet.processes
    grants = storm(fleet, users={much: 60, little: 20}, seconds=30, service_s=0.1, seed=2)

    assert 2.5 < grants[much] / grants[little] < 3.5


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_fewer_permits_than_processes_go_round(gateways: Make, limit: int) -> None:
    """No share would be a whole permit: they change sides by age."""
    fleet = gateways(processes=4, limit=limit)
    grants = storm(fleet, users=dict.fromkeys(fleet.processes, 5), seconds=30, service_s=0.05, seed=3)

    assert 4 == len(grants)
    assert max(grants.values()) < 1.3 * min(grants.values())


def test_a_flood_in_one_process_starves_no_request_in_another(gateways: Make) -> None:
    """One request at a process beside a flood waits about as long as if it had come to the flood's own line."""
    fleet = gateways(processes=2, limit=4, limits=QueueLimits(max_queued=1000, timeout_s=1000))
    flood, quiet = fleet.processes
    line = [flood.request() for _ in range(44)]
    fleet.clock.advance(1)
    single = quiet.request()
    fleet.clock.advance(1)
    late = [flood.request() for _ in range(40)]
    everybody = line + late
    while single.waiting:
        fleet.clock.advance(0.1)
        for request in served(everybody):
            everybody.remove(request)
            request.finish()

    assert not waiting(line)
    assert len(waiting(late)) >= 30
    for request in everybody:
        request.leave()
    single.finish()
    fleet.assert_idle()


def test_newcomers_of_one_process_do_not_overtake_those_who_wait_in_another(gateways: Make) -> None:
    """Free for a moment is not free for everybody: whoever has waited longest takes it, at its next look."""
    fleet = gateways(processes=2, limit=1)
    first, second = fleet.processes
    running = first.request()
    patient = second.request()
    fleet.clock.advance(CLAIM_SLACK_S * 2)
    running.finish()
    newcomer = first.request()
    assert newcomer.waiting
    fleet.clock.advance(LOOK_S)

    assert (True, True) == (patient.lease is not None, newcomer.waiting)
    patient.finish()
    fleet.clock.advance(LOOK_S)
    newcomer.finish()
    fleet.assert_idle()


def test_a_process_that_hangs_holds_nobody_up(gateways: Make) -> None:
    """Its claims stand for half a second, then free permits go to others; what it has in flight still counts."""
    fleet = gateways(processes=2, limit=2)
    hanging, other = fleet.processes
    kept, running = hanging.request(), other.request()
    stuck = hanging.request()
    fleet.clock.advance(1)
    for call in fleet.clock._calls:
        call.cancel()  # its event loop does nothing any more
    running.finish()
    patient = other.request()
    assert patient.waiting, "so far it may be about to look"
    fleet.clock.advance(CLAIM_STANDS_S + 2 * LOOK_S)

    assert patient.lease is not None
    assert [2] == fleet.sums()
    for request in (stuck, kept, patient):
        request.leave()
    fleet.assert_idle()


@pytest.mark.parametrize("late_s", [0.05, 0.15, 0.3])
def test_a_process_whose_event_loop_is_late_is_not_starved(gateways: Make, late_s: float) -> None:
    """Its machine is busy and it gets to run a few times a second: what it has waited for longest is left to it."""
    fleet = gateways(processes=2, limit=4)
    prompt, late = fleet.processes
    late.admission._rooms[MODEL]._call_later = lambda seconds, call: fleet.clock.call_later(max(seconds, late_s), call)
    users = [prompt.request() for _ in range(20)] + [late.request() for _ in range(5)]
    grants: Counter[Process] = Counter()
    until: dict[Request, float] = {}
    steps = int(20 / 0.005)
    for step in range(steps):
        fleet.clock.advance(0.005)
        runs = {prompt} if step % int(late_s / 0.005) else {prompt, late}
        for index, request in enumerate(users):
            if request.lease is None or request.process not in runs:
                continue
            if request not in until:
                until[request] = fleet.clock.now_s + 0.05
                grants[request.process] += 1
            elif until[request] <= fleet.clock.now_s:
                request.finish()
                users[index] = request.process.request()

    assert grants[late] / 5 > 0.4 * grants[prompt] / 20
    for request in users:
        request.leave()
    fleet.assert_idle()


def test_what_a_process_cannot_use_it_does_not_claim(gateways: Make) -> None:
    """Its first in line must not go to the worker that has room: others take that at once."""
    fleet = gateways(processes=2, workers=2, limit=1)
    retrying, other = fleet.processes
    first = retrying.request()
    second = other.request()
    bad = first.worker
    excluded = first.fail()
    first.ask(excluded, again=True)
    assert first.waiting
    fleet.clock.advance(1)
    newcomer = other.request()

    assert bad == newcomer.worker
    assert first.waiting
    good = second.worker
    second.finish()
    fleet.clock.advance(LOOK_S)
    assert good == first.worker
    for request in (first, newcomer):
        request.finish()
    fleet.assert_idle()


def test_permits_of_a_killed_process_are_back(gateways: Make) -> None:
    """As soon as the supervisor has zeroed its row they are granted; its claims are gone with it."""
    fleet = gateways(processes=2, limit=3)
    doomed, other = fleet.processes
    running = [doomed.request() for _ in range(3)]
    doomed.request()
    fleet.clock.advance(0.2)
    line = [other.request() for _ in range(4)]
    assert line == waiting(line)
    assert running == served(running)
    for call in fleet.clock._calls:
        if getattr(call.call, "__self__", None) in doomed.admission._rooms.values():
            call.cancel()
    fleet.kill(doomed)
    fleet.clock.advance(LOOK_S)

    assert line[:3] == served(line)
    assert [3] == fleet.sums()
    for request in line:
        request.leave()
    fleet.assert_idle()
