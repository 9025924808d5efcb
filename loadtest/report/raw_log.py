"""
The raw log of a run: one JSON object a line per request, with every gap, and its flat extract as CSV.

Whoever doubts a figure can compute it anew from here, by whatever definition. Fields are those of
`loadtest.ledger.RequestRecord`; moments are seconds since the start of the run, gaps are whole microseconds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TextIO

import msgspec

from loadtest.ledger import RequestRecord
from loadtest.report.series import TimelineRow

REQUEST_COLUMNS = (
    *("request_id", "kind", "family", "tenant", "session", "outcome", "status", "scheduled_s", "connect_s", "sent_s"),
    *("first_token_s", "first_visible_s", "last_token_s", "ended_s", "send_lag_s", "ttft_s", "ttft_from_schedule_s"),
    *("ttfvt_s", "tpot_s", "e2e_s", "service_s", "largest_gap_s", "token_events", "prompt_tokens", "cached_tokens"),
    *("output_tokens", "finish_reason", "server_timing", "detail"),
)
"""Of the CSV: everything that has one value per request."""


def write_raw_log(file: TextIO, records: Iterable[RequestRecord]) -> None:
    """One line per request, in the order of their ends."""
    encoder = msgspec.json.Encoder()
    for record in records:
        file.write(encoder.encode(record.to_json()).decode())
        file.write("\n")


def read_raw_log(path: Path) -> Iterator[RequestRecord]:
    """
    The records of a raw log.

    Raises:
        ValueError: a line that is no record; the message has its number.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield RequestRecord.from_json(msgspec.json.decode(line))
            except (msgspec.MsgspecError, KeyError, TypeError) as error:
                raise ValueError(
                    f"expected one request of a load test on line {number} of {path}, found {error}"
                ) from error


def write_requests_csv(file: TextIO, records: Iterable[RequestRecord]) -> None:
    """One row per request, for spreadsheets and data frames; what is not known stays empty."""
    writer = csv.writer(file)
    writer.writerow(REQUEST_COLUMNS)
    for record in records:
        largest = max(record.gaps_s, default=None)
        writer.writerow(
            _cell(largest if name == "largest_gap_s" else getattr(record, name)) for name in REQUEST_COLUMNS
        )


def write_timeline_csv(file: TextIO, rows: Sequence[TimelineRow]) -> None:
    """One row per second of the run."""
    names = [one.name for one in fields(TimelineRow)]
    writer = csv.writer(file)
    writer.writerow(names)
    for row in rows:
        writer.writerow(_cell(getattr(row, name)) for name in names)


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else value
