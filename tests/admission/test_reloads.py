"""Limits that change while requests run and wait, and fleets that do: what a reload does to those in line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.admission import QueueLimits
from tests.admission.gateways import Gateways, Process, served, waiting

Make = Callable[..., Gateways]


def replacement(fleet: Gateways, limit: int, *, told: bool = True) -> tuple[Process, Process]:
    """The process that was there, and one that a reload has started with another limit for the same model."""
    fleet.limit = limit
    fleet.processes.append(Process(fleet, QueueLimits()))
    fleet.publish(told=limit if told else -1)
    return fleet.processes[0], fleet.processes[1]


@pytest.mark.parametrize("limit", [8, 0])
def test_a_limit_that_is_raised_or_taken_away_holds_for_those_who_wait_too(gateways: Make, limit: int) -> None:
    """
    The old process has a line and settings by which two permits are all there are. It claims what the new one must then
    not touch, and without a limit in the new one would never see one free: so it goes by the limit in force, and
    everybody runs within a look.
    """
    fleet = gateways(limit=2)
    line = [fleet.processes[0].request() for _ in range(5)]
    fleet.clock.advance(1)
    assert line[2:] == waiting(line)
    old, new = replacement(fleet, limit)
    fleet.clock.advance(0.01)
    newcomers = [new.request() for _ in range(3)]

    assert (line, newcomers) == (served(line), served(newcomers))
    for request in (*line, *newcomers):
        request.finish()
    assert 0 == old.admission.waiting
    fleet.assert_idle()


def test_a_limit_that_is_lowered_holds_for_both_at_once(gateways: Make) -> None:
    """What runs goes on; from then on neither process grants above the new limit, and the oldest is first."""
    fleet = gateways(limit=4)
    line = [fleet.processes[0].request() for _ in range(6)]
    fleet.clock.advance(1)
    _, new = replacement(fleet, 2)
    newcomer = new.request()
    fleet.clock.advance(0.1)
    line[0].finish()
    line[1].finish()
    fleet.clock.advance(0.1)
    assert (line[4:], True, [2]) == (waiting(line), newcomer.waiting, fleet.sums())

    line[2].finish()
    fleet.clock.advance(0.02)
    assert (line[5:], [2]) == (waiting(line), fleet.sums())
    line[3].finish()
    line[4].finish()
    fleet.clock.advance(0.02)
    assert ([line[5]], False, [2]) == (served(line[5:]), newcomer.waiting, fleet.sums())
    for request in (*line, newcomer):
        request.leave()
    fleet.assert_idle()


def test_a_limit_that_comes_back_finds_no_claim_left_from_before(gateways: Make) -> None:
    """While there is none nothing is claimed, so that a request that still waits then keeps no permit idle later."""
    fleet = gateways(limit=1, workers=1)
    process = fleet.processes[0]
    running, patient = process.request(), process.request()
    fleet.clock.advance(1)
    assert patient.waiting
    fleet.publish(told=0)
    fleet.clock.advance(0.01)
    assert patient.lease is not None
    fleet.publish(told=2)
    another = process.request()
    assert another.waiting
    running.finish()
    assert another.lease is not None
    for request in (patient, another):
        request.finish()
    fleet.assert_idle()
