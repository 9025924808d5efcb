"""When others are let in, how often at most, and what is done about those who stay."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from math import inf

import pytest

from gateway.proxy.processor_yield import LONG_S, LONGEST_REST_S, PAUSE_S, REST, TURN_S, ProcessorYield
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Gate
from tests.proxy.raw_client import CHAT, chat, connect, post
from tests.proxy.served import gateway

EVENT_S = 12e-6
"""What one event takes."""


class Processor:
    """One that others use for `taken_s` whenever they are let in."""

    def __init__(self, taken_s: float = 30e-6) -> None:
        self.now = 1000.0
        self.taken_s = taken_s
        self.offers: list[float] = []
        self.giving = ProcessorYield(self._give_way, lambda: self.now)

    def _give_way(self) -> None:
        self.offers.append(self.now)
        self.now += self.taken_s

    def events(self, count: int, apart_s: float = EVENT_S) -> None:
        for _ in range(count):
            self.now += apart_s
            self.giving.wrote(self.now)


def test_in_a_burst_others_are_let_in_after_each_turn() -> None:
    """No client waits for more than a turn and one event of other clients'."""
    processor = Processor()
    processor.events(40)

    edges = [1000.0 + EVENT_S, *processor.offers]
    turns = [later - earlier for earlier, later in pairwise(edges)]
    assert len(turns) >= 5
    assert all(TURN_S < turn <= TURN_S + EVENT_S + processor.taken_s + 1e-9 for turn in turns)


def test_events_that_come_one_by_one_let_nobody_in() -> None:
    """The process sleeps between them: an offer would be a system call for nothing."""
    processor = Processor()
    processor.events(1000, PAUSE_S * 1.01)

    assert processor.offers == []


def test_a_burst_after_a_pause_has_its_whole_turn() -> None:
    """What was before the pause is over."""
    processor = Processor()
    processor.events(5)
    processor.now += 0.01
    began = processor.now
    processor.events(5)
    assert processor.offers == []

    processor.events(2)
    assert len(processor.offers) == 1
    assert processor.offers[0] - began > TURN_S


def test_who_stays_long_is_not_let_in_again_for_a_hundred_times_as_long() -> None:
    """Whoever computes takes a whole time slice each time."""
    processor = Processor(taken_s=0.003)
    processor.events(10)
    assert len(processor.offers) == 1
    back = processor.now

    while processor.now < back + REST * 0.003 - EVENT_S:
        processor.events(1)
    assert len(processor.offers) == 1

    processor.events(20)
    assert len(processor.offers) == 2


def test_a_pause_does_not_end_that_early() -> None:
    """A burst every two milliseconds is the usual thing."""
    processor = Processor(taken_s=0.003)
    while processor.now < 1010.0:
        processor.events(10)
        processor.now += 0.002

    assert 0 < len(processor.offers) * 0.003 < 10.0 / REST + 0.003


def test_events_apart_that_come_often_let_nobody_in_either() -> None:
    """Of many workers, whose steps are not in time with each other."""
    processor = Processor()
    processor.events(5000, 200e-6)

    assert processor.offers == []


def test_a_process_that_was_stopped_goes_on_soon() -> None:
    """Whoever debugs it, or suspends its machine, is no reason to rest for hours."""
    processor = Processor(taken_s=60.0)
    processor.events(10)
    assert len(processor.offers) == 1
    processor.now += LONGEST_REST_S
    processor.events(20)

    assert len(processor.offers) == 2


def test_time_before_an_offer_is_nobodys() -> None:
    """The event's own write may take long: the client that it wakes may interrupt it."""
    processor = Processor()
    for _ in range(3):
        processor.events(4)
        written_at = processor.now + 30e-6
        processor.now = written_at + LONG_S * 2
        processor.giving.wrote(written_at)

    assert len(processor.offers) == 3


def test_a_client_that_reads_may_take_its_time() -> None:
    """It is let in again at once after the next turn."""
    processor = Processor(taken_s=LONG_S * 0.9)
    processor.events(100)

    assert len(processor.offers) >= 100 * EVENT_S / (TURN_S + EVENT_S) - 1


@pytest.mark.anyio
async def test_a_relays_streams_are_all_told_to_one() -> None:
    """What counts is for how long the process has held its processor, whomever the events were for."""
    events = frames.ChatStream().events(["a", "b", "c", "d"], usage=False)
    gates = [Gate(str(number)) for number in range(len(events))]
    script = scripts.stream([step for pair in zip(events, gates, strict=True) for step in pair])
    offers: list[bool] = []
    async with (
        asyncio.timeout(10),
        FaultServer(script, script) as worker,
        gateway(worker) as served,
        connect(served.port) as one,
        connect(served.port) as other,
    ):
        served.relay.processor = ProcessorYield(lambda: offers.append(True), lambda: 0.0, turn_s=0.0, pause_s=inf)
        answers = []
        for client in (one, other):
            client.send(post(CHAT, chat()))
            answers.append((client, await client.head()))
        for gate, event in zip(gates, events, strict=True):
            for client, answer in answers:
                assert event == await client.chunk(answer)
            worker.release(gate.name)
        for client, answer in answers:
            await client.rest(answer)
        await served.idle()

    assert len(offers) >= 2 * len(events)
