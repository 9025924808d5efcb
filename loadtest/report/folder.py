"""The folder of one run: what is written there, and reading it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from loadtest.report.raw_log import read_raw_log, write_raw_log, write_requests_csv, write_timeline_csv
from loadtest.report.series import timeline_rows
from loadtest.report.summary import stored_json
from loadtest.result import RunResult
from loadtest.target import UsageError

RESULT, RAW_LOG, REPORT = "result.json", "requests.jsonl", "report.html"


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Where the files of a run are, with what each is for."""

    folder: Path
    files: tuple[tuple[Path, str], ...]

    def lines(self) -> list[str]:
        """One line per file, the report first."""
        width = max(len(str(path)) for path, _ in self.files)
        return [f"{path!s:<{width}}  {meaning}" for path, meaning in self.files]


def write_results(folder: Path, result: RunResult) -> WrittenFiles:
    """
    Writes report, result, raw log and tables; the folder is made if missing. JSON first: it must not be lost with HTML.

    Raises:
        OSError: the folder cannot be written.
    """
    # Imported here: a run that is only printed needs no templates.
    from loadtest.report.html import report_html

    folder.mkdir(parents=True, exist_ok=True)
    records = result.ledger.records
    steps: tuple[tuple[str, str, Callable[[TextIO], object]], ...] = (
        (RESULT, "settings, figures, histograms", lambda file: json.dump(stored_json(result), file)),
        (RAW_LOG, "every request with every gap, one a line", lambda file: write_raw_log(file, records)),
        ("requests.csv", "every request, one a row", lambda file: write_requests_csv(file, records)),
        ("timeline.csv", "one row a second", lambda file: write_timeline_csv(file, timeline_rows(result))),
        (REPORT, "the report: open it in a browser", lambda file: file.write(report_html(result))),
    )
    for name, _, write in steps:
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            write(file)
    return WrittenFiles(folder, tuple((folder / name, meaning) for name, meaning, _ in (steps[-1], *steps[:-1])))


def read_result(path: Path) -> RunResult:
    """
    A stored result: the folder of a run, or its result.json. Exact when the raw log still lies beside it.

    Raises:
        UsageError: nothing there, or nothing that this version reads.
    """
    file = path / RESULT if path.is_dir() else path
    raw_log = file.parent / RAW_LOG
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} instead of an object")
        records = list(read_raw_log(raw_log)) if file.name == RESULT and raw_log.exists() else None
        return RunResult.from_json(value, records)
    except OSError as error:
        raise UsageError(f"expected a result.json or the folder of a run, found {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"expected the result of a load test in {file}, found: {error}") from error
