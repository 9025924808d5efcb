"""
Writes the dashboards: `python -m grafana [--check] [FOLDER]`.

With `--check` nothing is written, and the exit code is 1 when a file in the folder is not what it would be, is missing,
or belongs to no page.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from grafana.pages import PAGES

DEFAULT_FOLDER = Path(__file__).parent / "dashboards"


def generated() -> Mapping[str, str]:
    """Every dashboard's JSON by file name."""
    return {page.file_name: page.to_json() for page in PAGES}


def main(arguments: Sequence[str]) -> int:
    """Write or check; returns the exit code."""
    folders = [Path(argument) for argument in arguments if not argument.startswith("--")]
    folder = folders[0] if folders else DEFAULT_FOLDER
    wanted = generated()
    present = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    if "--check" in arguments:
        stale = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
        for name in stale:
            print(f"{folder / name} is not current; run: make dashboards", file=sys.stderr)
        return 1 if stale else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in present.keys() - wanted.keys():
        (folder / name).unlink()
    return 0
