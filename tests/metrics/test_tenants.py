"""Counting by tenant: a set of names that changes while a process runs, in a board that is laid out once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.keys.key import MAX_NAME
from gateway.metrics import Board, Layout, SlotCounters, Totals, render
from gateway.metrics.catalogue import (
    TENANT_IN_FLIGHT,
    TENANT_OUTPUT_TOKENS,
    TENANT_PROMPT_TOKENS,
    TENANT_REQUESTS,
    TENANTS_WITH_A_NAME,
)
from gateway.metrics.tenants import CELL_BYTES, NAME_BYTES, SLOT_CELLS
from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Family, Outcome

LAYOUT = Layout(("m",))


@pytest.fixture
def totals() -> Iterator[Totals]:
    """A supervisor's totals; what a test creates in them is retired at its end."""
    totals = Totals()
    yield totals
    for board in list(totals._boards):
        totals.retire(board)


def count(counters: SlotCounters, tenant: str | None, outcome: Outcome = Outcome.OK, **more: int) -> None:
    """One request from beginning to end."""
    counters.started("m", tenant)
    record = ExchangeRecord("r", Endpoint.SCORE, Family.PLAIN, 0.0, "m", tenant, outcome=outcome)
    for name, value in more.items():
        setattr(record, name, value)
    counters.finished(record)


def requests(totals: Totals) -> dict[tuple[str, str], float]:
    """Tenant and outcome of all requests that have ended."""
    return {
        (labels[0], labels[1]): cells[0]
        for (metric, labels), cells in totals.merged().items()
        if metric == TENANT_REQUESTS and cells[0]
    }


def tenants(totals: Totals) -> set[str]:
    """All `tenant` labels of the exposition."""
    return {
        sample.labels["tenant"]
        for family in text_string_to_metric_families(render(totals.merged()).decode())
        for sample in family.samples
        if "tenant" in sample.labels
    }


def test_only_tenants_that_were_seen_have_series(totals: Totals) -> None:
    """None before the first request; with it all outcomes are there at zero, so that the first one is an increase."""
    counters = SlotCounters(LAYOUT, totals.create(LAYOUT).cells)
    assert set() == tenants(totals)

    counters.started("m", "acme")
    values = totals.merged()

    assert {"acme"} == tenants(totals)
    assert [1.0] == values[TENANT_IN_FLIGHT, ("acme",)]
    assert {(outcome.value, 0.0) for outcome in Outcome} == {
        (labels[1], cells[0]) for (metric, labels), cells in values.items() if metric == TENANT_REQUESTS
    }


def test_requests_without_a_key_are_anonymous_and_refused_ones_nobodys(totals: Totals) -> None:
    """A refused key is in the total and in no tenant's."""
    counters = SlotCounters(LAYOUT, totals.create(LAYOUT).cells)
    count(counters, "")
    for _ in range(3):
        count(counters, None, Outcome.CLIENT_ERROR, prompt_tokens=9, output_tokens=9)

    assert {("anonymous", "ok"): 1.0} == requests(totals)
    assert {"anonymous"} == tenants(totals)
    assert 0.0 == totals.merged()[TENANT_PROMPT_TOKENS, ("anonymous",)][0]
    assert b'outcome="client_error"} 3.0' in render(totals.merged()).replace(b'endpoint="/score",', b"")


def test_tokens_of_a_tenant_are_those_that_a_usage_confirmed(totals: Totals) -> None:
    """As in the totals by model."""
    counters = SlotCounters(LAYOUT, totals.create(LAYOUT).cells)
    count(counters, "acme", prompt_tokens=5, output_tokens=7)
    count(counters, "acme", Outcome.CLIENT_CLOSED, output_tokens=11, output_tokens_estimated=True)
    values = totals.merged()

    assert ([5.0], [7.0]) == (values[TENANT_PROMPT_TOKENS, ("acme",)], values[TENANT_OUTPUT_TOKENS, ("acme",)])
    assert {("acme", "ok"): 1.0, ("acme", "client_closed"): 1.0} == requests(totals)


def test_processes_that_met_tenants_in_another_order_add_up_by_name(totals: Totals) -> None:
    """A slot's number means nothing; and of a dead process the counts stay while what it had in flight goes."""
    first, second = (totals.create(LAYOUT) for _ in range(2))
    one, two = SlotCounters(LAYOUT, first.cells), SlotCounters(LAYOUT, second.cells)
    for counters, names in ((one, ("a", "b", "c", "a")), (two, ("c", "b", "d"))):
        for name in names:
            count(counters, name)
    one.started("m", "a")
    before = requests(totals)
    in_flight = totals.merged()[TENANT_IN_FLIGHT, ("a",)]
    totals.retire(first)

    assert {("a", "ok"): 2.0, ("b", "ok"): 2.0, ("c", "ok"): 2.0, ("d", "ok"): 1.0} == before
    assert before == requests(totals)
    assert ([1.0], [0.0]) == (in_flight, totals.merged()[TENANT_IN_FLIGHT, ("a",)])


def test_tenants_beyond_the_table_are_counted_together(totals: Totals) -> None:
    """300 of them: the first have names for ever, the rest are `other`, and nothing is lost."""
    counters = SlotCounters(LAYOUT, totals.create(LAYOUT).cells)
    names = [f"tenant-{number}" for number in range(300)]
    for round_ in (names, names[::-1]):
        for name in round_:
            count(counters, name)
    counted = Counter({name: int(value) for (name, _), value in requests(totals).items()})

    assert {*names[:TENANTS_WITH_A_NAME], "other"} == tenants(totals)
    assert 2 * (300 - TENANTS_WITH_A_NAME) == counted["other"]
    assert {2} == {counted[name] for name in names[:TENANTS_WITH_A_NAME]}
    assert [0.0] == totals.merged()[TENANT_IN_FLIGHT, ("other",)]


@pytest.mark.parametrize("name", ["a", "x" * MAX_NAME, "A.b_c-9"])
def test_every_name_a_key_can_have_fits(totals: Totals, name: str) -> None:
    """The longest one too, and it does not run into the counts behind it."""
    board = totals.create(LAYOUT)
    attached = Board.attach(Layout(("m",)), os.dup(board.fd))
    counters = SlotCounters(LAYOUT, attached.cells)
    count(counters, name, prompt_tokens=3)
    count(counters, "next", prompt_tokens=4)
    attached.close()  # nothing holds on to its memory

    assert MAX_NAME <= NAME_BYTES
    assert {(name, "ok"): 1.0, ("next", "ok"): 1.0} == requests(totals)
    assert [3.0] == totals.merged()[TENANT_PROMPT_TOKENS, (name,)]


def test_a_name_that_has_not_arrived_whole_is_left_for_the_next_reading(totals: Totals) -> None:
    """Its length may be visible before all of its bytes: no tenant of half a name, and the counts come later."""
    board = totals.create(LAYOUT)
    count(SlotCounters(LAYOUT, board.cells), "acme")
    last_byte = (LAYOUT.tenants.slot(2) + 1) * CELL_BYTES + 3
    with board.cells.cast("B") as memory:
        memory[last_byte] = 0
        halfway = tenants(totals)
        memory[last_byte] = ord("e")

    assert set() == halfway
    assert {("acme", "ok"): 1.0} == requests(totals)


def test_the_table_is_bounded() -> None:
    """Slots for the tenants with a name, for the others, and for nobody: 47 KiB for each process."""
    size = (LAYOUT.tenants.end - LAYOUT.tenants.offset) * CELL_BYTES

    assert (TENANTS_WITH_A_NAME + 2) * SLOT_CELLS * CELL_BYTES == size
    assert LAYOUT.size_bytes - size == LAYOUT.tenants.offset * CELL_BYTES
    assert 48_000 > size
