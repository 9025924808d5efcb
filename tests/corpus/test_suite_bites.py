"""The corpus suite is known to bite: a naive httpx relay fails most of its first-priority cases."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_naive_relay_fails_most_of_the_first_priority(tmp_path: Path) -> None:
    """Run the suite against the double and count ids; what needs no more than forwarding must pass, so it does run."""
    report = tmp_path / "naive.xml"
    command = [sys.executable, "-m", "pytest", str(HERE), "--relay", "naive", f"--junitxml={report}"]
    command += ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "-m", "not integration and not soak"]
    command += [f"--ignore={HERE / 'test_suite_bites.py'}", f"--ignore={HERE / 'test_corpus_is_complete.py'}"]
    environ = {name: value for name, value in os.environ.items() if name != "CI"}
    subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, timeout=380, check=False)

    results: defaultdict[str, set[str]] = defaultdict(set)
    for case in ElementTree.parse(report).iter("testcase"):
        named = re.match(r"test_(c\d\d)_", case.get("name", ""))
        if named is not None:
            results[named[1].upper()].add(outcome_of(case))
    first = [entry["id"] for entry in json.loads((HERE / "corpus_ids.json").read_text()) if entry["priority"] == "P0"]
    ran = [number for number in first if number in results]
    failed = [number for number in ran if "failed" in results[number]]

    assert len(ran) > 45
    assert len(failed) > 2 / 3 * len(ran), sorted(set(ran) - set(failed))
    assert {"passed"} == results["C11"] == results["C20"], "the double does not even forward"


def outcome_of(case: ElementTree.Element) -> str:
    """A test that could not run does not count as one that bites."""
    for tag in ("error", "skipped"):
        if case.find(tag) is not None:
            return tag
    return "passed" if case.find("failure") is None else "failed"
