"""The dashboards are what Grafana 10.4, 11.6 and 13.2 call a dashboard: their published types say so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.grafana.reading import FOLDER
from tests.grafana.typescript import RELEASES, complaints

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("release", RELEASES)
def test_every_field_of_every_dashboard_is_known_and_has_its_type(release: str, tmp_path: Path) -> None:
    """Dashboards, variables, panels with the options of their kind, queries; a field that does not exist fails."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.json"))}

    assert "" == complaints(release, texts, tmp_path, os.environ)


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    """Names, values of enumerations, kinds of containers, and what is missing: each is complained of."""
    dashboard = json.loads((FOLDER / "overview.json").read_text(encoding="utf-8"))
    first, second, third, fourth, *_ = dashboard["panels"]
    first["options"]["colourMode"] = "value"
    second["options"]["colorMode"] = "loud"
    third["fieldConfig"]["overrides"] = {}
    fourth["targets"][0].pop("expr")

    said = complaints("11.6", {"overview": json.dumps(dashboard)}, tmp_path, os.environ)

    assert 4 == said.count("error TS")
    assert all(word in said for word in ("colourMode", "loud", "matcher", "expr"))
