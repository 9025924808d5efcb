"""What a run leaves on disk: every request in every form, and a result that reads back as it was."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from loadtest.report.command import main
from loadtest.report.figures import figures
from loadtest.report.folder import RAW_LOG, RESULT, read_result, write_results
from loadtest.report.raw_log import REQUEST_COLUMNS, read_raw_log
from loadtest.target import UsageError
from tests.loadtest.report.invented import invented_run

RUN = invented_run(seconds=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "chat-20261129-220000"
    write_results(path, RUN)
    return path


def test_all_files_are_there_and_named_with_their_purpose(folder: Path) -> None:
    """The report first: it is what people open."""
    lines = write_results(folder, RUN).lines()

    names = [Path(line.split()[0]).name for line in lines]
    assert ["report.html", "result.json", "requests.jsonl", "requests.csv", "timeline.csv"] == names
    assert sorted(names) == sorted(path.name for path in folder.iterdir())
    assert lines[0].endswith("the report: open it in a browser")


def test_the_raw_log_has_one_line_per_request_with_every_gap(folder: Path) -> None:
    """Failed and unsent ones too; to the microsecond."""
    back = list(read_raw_log(folder / RAW_LOG))

    assert len(RUN.ledger.records) == len(back) == len((folder / RAW_LOG).read_text().splitlines())
    for record, again in zip(RUN.ledger.records, back, strict=True):
        assert (record.request_id, record.outcome, record.detail) == (again.request_id, again.outcome, again.detail)
        assert record.sent_s == again.sent_s
        assert list(record.gaps_s) == pytest.approx(list(again.gaps_s), abs=1e-6)


def test_a_result_reads_back_with_the_same_figures(folder: Path) -> None:
    """By its folder and by its file; exact, because the raw log lies beside it."""
    for path in (folder, folder / RESULT):
        back = read_result(path)
        assert (RUN.settings, RUN.timeline, RUN.server, RUN.health) == (
            back.settings,
            back.timeline,
            back.server,
            back.health,
        )
        assert figures(RUN).row("ttft").histogram.count == figures(back).row("ttft").histogram.count
        assert figures(RUN).rates.output_tokens == pytest.approx(figures(back).rates.output_tokens)


def test_the_stored_figures_are_those_of_the_table(folder: Path) -> None:
    """For programs: seconds, null for infinite, the names of percentiles with too few samples."""
    stored = json.loads((folder / RESULT).read_text())["figures"]
    ttft, row = stored["durations_s"]["ttft"], figures(RUN).row("ttft")

    assert (row.percentile(0.95), row.histogram.count) == (ttft["p95"], ttft["samples"])
    assert ttft["with_lost"]["p50"] is not None
    assert ttft["with_lost"]["p99.9"] is None
    assert ["p99", "p99.9"] == [name for name in ttft["thin"] if name not in ("p90", "p95")]
    assert stored["due"] == stored["ok"] + stored["failed"] + stored["unsent"]
    assert [text for text in stored["missed"] if text.startswith("ttft_p95")] == []
    assert stored["valid"] is True


def test_the_tables_have_a_row_per_request_and_per_second(folder: Path) -> None:
    """With headings, and empty cells for what is not known."""
    with (folder / "requests.csv").open(newline="") as file:
        requests = list(csv.DictReader(file))
    with (folder / "timeline.csv").open(newline="") as file:
        seconds = list(csv.DictReader(file))

    assert len(RUN.ledger.records) == len(requests)
    assert list(REQUEST_COLUMNS) == list(requests[0])
    assert [record.request_id for record in RUN.ledger.records] == [row["request_id"] for row in requests]
    unsent = [row for row in requests if row["outcome"] in ("unsent", "http_status")]
    assert [""] * len(unsent) == [row["ttft_s"] for row in unsent]
    assert len(RUN.timeline) == len(seconds)


def test_the_command_writes_a_report_and_a_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the result unless told otherwise; the path is what it prints."""
    (folder / "report.html").unlink()

    assert 0 == main([str(folder)])
    assert "<h1>Load test: chat</h1>" in (folder / "report.html").read_text()
    assert 0 == main([str(folder / RESULT), str(folder)])
    assert "<h1>Load test: chat, compared</h1>" in (folder / "comparison.html").read_text()
    assert capsys.readouterr().out.split() == [str(folder / "report.html"), str(folder / "comparison.html")]
    (folder / "comparison.html").unlink()


@pytest.mark.parametrize("content", [None, "no JSON", "[]", "{}", json.dumps({"format": 99})])
def test_what_is_no_result_is_refused_in_words(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing, broken, something else, another version."""
    if content is not None:
        (tmp_path / RESULT).write_text(content)

    assert 2 == main([str(tmp_path)])
    assert capsys.readouterr().err.startswith("loadtest: expected ")
    assert not (tmp_path / "report.html").exists()


def test_a_broken_line_of_the_raw_log_is_named(folder: Path, tmp_path: Path) -> None:
    """Never skipped in silence: every figure would be slightly wrong."""
    (tmp_path / RESULT).write_text((folder / RESULT).read_text())
    lines = (folder / RAW_LOG).read_text().splitlines()
    (tmp_path / RAW_LOG).write_text("\n".join([*lines[:3], lines[3][:40]]))

    with pytest.raises(UsageError, match="line 4 of"):
        read_result(tmp_path)


def test_a_place_that_cannot_be_written_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the option that mends it."""
    assert 2 == main([str(folder), "-o", str(folder / "missing" / "report.html")])
    assert "set --output" in capsys.readouterr().err
