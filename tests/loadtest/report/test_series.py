"""What charts are made of: nothing lost between a run and its rows, cells and points."""

from __future__ import annotations

import dataclasses

import pytest

from loadtest.report.series import (
    gap_heat_map,
    in_flight_at_sending,
    load_points,
    thinned,
    timeline_rows,
)
from tests.loadtest.report.invented import invented_run

RUN = invented_run(seconds=20)


@pytest.mark.parametrize("most", [None, 7])
def test_rows_add_up_to_the_run(most: int | None) -> None:
    """Rates times lengths are the counts of the last sample, however many rows are joined."""
    rows, last = timeline_rows(RUN, most), RUN.timeline[-1]

    def total(name: str) -> float:
        return sum(getattr(row, name) * (row.end_s - row.start_s) for row in rows)

    assert last.scheduled == pytest.approx(total("scheduled_per_s"))
    assert last.ok == pytest.approx(total("ok_per_s"))
    assert last.failed == pytest.approx(total("failed_per_s"))
    assert last.token_events == pytest.approx(total("token_events_per_s"))
    # Whole answers' usage, and for the broken ones an event counts as a token.
    received = sum(record.output_tokens or record.token_events for record in RUN.ledger.records)
    assert received == pytest.approx(total("output_tokens_per_s"))
    assert len(RUN.timeline) == len(rows) if most is None else len(rows) <= most


def test_server_figures_are_those_known_at_the_end_of_a_row() -> None:
    """Gauges as they were, counters as what came in between; unknown before the first scrape."""
    rows = timeline_rows(RUN)

    assert RUN.server[4].running == rows[4].server_running
    assert rows[0].prefix_hit_share is None
    known = [row.prefix_hit_share for row in rows if row.prefix_hit_share is not None]
    assert known == pytest.approx([32 / 180] * len(known))
    assert len(known) > 10


def test_a_heat_map_holds_every_gap_once_and_the_stall_where_it_was() -> None:
    """The invented run stalls for a second in its middle."""
    heat = gap_heat_map(RUN.ledger.records, 22.0)

    assert heat is not None
    assert sum(len(record.gaps_s) for record in RUN.ledger.records) == sum(count for _, _, count in heat.cells)
    longest = max(heat.cells, key=lambda cell: cell[1])
    assert heat.edges_s[longest[0]] == pytest.approx(11.0, abs=1.0)
    assert 0.9 < heat.floor_s * heat.step ** longest[1] < 1.2


def test_concurrency_is_time_in_flight_and_counts_the_others() -> None:
    """The areas under both views are the time that requests were in flight."""
    rows = timeline_rows(RUN)
    points = load_points(RUN, rows)
    sent = [record for record in RUN.ledger.records if record.sent_s is not None]
    busy = sum(record.ended_s - (record.sent_s or 0.0) for record in sent)

    assert busy == pytest.approx(sum(point.in_flight for point in points))
    assert 0 == in_flight_at_sending(sent)[0][0]
    assert len(sent) == len(in_flight_at_sending(sent))
    for others, record in in_flight_at_sending(sent):
        at = record.sent_s or 0.0
        assert others == sum((other.sent_s or 0.0) < at < other.ended_s for other in sent)


def test_thinning_keeps_the_highest_points() -> None:
    """Outliers are what one looks for."""
    records = RUN.ledger.records
    points = [(record.scheduled_s, float(k % 97), record) for k, record in enumerate(records)]
    kept = thinned(points, 40)

    assert len(kept) <= 40
    assert max(y for _, y, _ in points) == max(y for _, y, _ in kept)
    assert points == thinned(points, 10_000)


def test_the_short_rest_of_a_run_makes_no_spike() -> None:
    """The last sample comes when the run ends: two answers within a tenth of a second are not twenty a second."""
    run = invented_run(seconds=5)
    last = run.timeline[-1]
    run.timeline.append(dataclasses.replace(last, at_s=last.at_s + 0.1, ok=last.ok + 2))
    rows = timeline_rows(run)

    assert len(run.timeline) - 1 == len(rows)
    assert (last.at_s + 0.1) == rows[-1].end_s
    assert rows[-1].ok_per_s < 3
