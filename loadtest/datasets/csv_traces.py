"""Traces as CSV: one request a line, with its time and its lengths."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from loadtest.datasets.entry import DatasetError, Entry

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
"""Of the Azure LLM inference traces, 2023 and 2024."""
BURSTGPT_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
"""Of BurstGPT, every release; later ones have "Session ID" and "Elapsed time" besides."""


def read_azure(path: Path) -> Iterator[Entry]:
    """
    The Azure LLM inference traces: `TIMESTAMP` is a date and time, with or without a time zone.

    Raises:
        DatasetError: a missing column, or a value that cannot be read.
    """
    for line, row in _rows(path, AZURE_COLUMNS):
        text = row["TIMESTAMP"]
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise DatasetError(path, line, "a date like 2023-11-16 18:15:46.68", repr(text), "TIMESTAMP") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        yield Entry(
            at_s=moment.timestamp(),
            prompt_tokens=_count(path, line, row, "ContextTokens"),
            output_tokens=_count(path, line, row, "GeneratedTokens"),
        )


def read_burstgpt(path: Path) -> Iterator[Entry]:
    """
    BurstGPT: `Timestamp` in seconds. Requests that failed when it was recorded have 0 response tokens.

    Raises:
        DatasetError: a missing column, or a value that cannot be read.
    """
    for line, row in _rows(path, BURSTGPT_COLUMNS):
        text = row["Timestamp"]
        try:
            at_s = float(text)
        except ValueError:
            raise DatasetError(path, line, "seconds", repr(text), "Timestamp") from None
        yield Entry(
            at_s=at_s,
            prompt_tokens=_count(path, line, row, "Request tokens"),
            output_tokens=_count(path, line, row, "Response tokens"),
            session=row.get("Session ID") or None,
        )


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            header = reader.fieldnames or ()
            missing = [name for name in columns if name not in header]
            if missing:
                raise DatasetError(path, 1, f"the columns {', '.join(columns)}", ", ".join(header) or "an empty file")
            for row in reader:
                short = next((name for name in columns if row[name] is None), None)
                if short is not None:
                    raise DatasetError(path, reader.line_num, f"{len(header)} values", "fewer", short)
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DatasetError(path, reader.line_num, "CSV in UTF-8", error) from error


def _count(path: Path, line: int, row: Mapping[str, str], column: str) -> int:
    text = row[column].strip()
    if not text.isdecimal():
        raise DatasetError(path, line, "a whole number of tokens", repr(text), column)
    return int(text)
