"""`python -m loadtest report RESULT [OTHER]`: the report of a stored run, anew, or of two runs compared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.report.folder import REPORT, read_result
from loadtest.report.html import report_html
from loadtest.target import UsageError


def build_parser() -> argparse.ArgumentParser:
    """The argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest report",
        description="Writes the HTML report of a stored run, or of a run compared with another one.",
    )
    parser.add_argument("result", type=Path, help="the folder of a run, or its result.json")
    parser.add_argument("other", type=Path, nargs="?", help="what it is compared with")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: report.html, or comparison.html")
    return parser


def main(argv: Sequence[str]) -> int:
    """Reads, writes, prints where; 2: nothing to read, or no place to write."""
    options = build_parser().parse_args(argv)
    folder = options.result if options.result.is_dir() else options.result.parent
    output = options.output or folder / (REPORT if options.other is None else "comparison.html")
    try:
        result = read_result(options.result)
        other = None if options.other is None else read_result(options.other)
        output.write_text(report_html(result, other), encoding="utf-8")
    except UsageError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"loadtest: the report cannot be written: {error}: set --output", file=sys.stderr)
        return 2
    print(output)
    return 0
