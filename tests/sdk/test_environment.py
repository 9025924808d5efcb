"""Where the SDKs come from: locked, without addresses, and a missing part is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.sdk import environment, matrix


def test_the_node_lock_holds_versions_and_hashes_and_no_addresses() -> None:
    """npm finds the files wherever the machine's own configuration says."""
    lock = json.loads((environment.NODE_SOURCES / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: package for name, package in lock["packages"].items() if name}

    assert packages
    for name, package in packages.items():
        assert {"version", "integrity"} <= set(package), name
        assert "resolved" not in package, name


def test_node_without_npm_is_no_node(tmp_path: Path) -> None:
    """The modules cannot be installed then."""
    (tmp_path / "node").symlink_to("/bin/true")

    assert environment.node_version({"PATH": str(tmp_path)}) is None
    assert environment.built_node({"PATH": str(tmp_path)}) is None


def test_a_client_that_cannot_run_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A skip names the program or the command that mends it."""
    monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path)})
    monkeypatch.setattr(environment, "PYTHON_FOLDER", tmp_path / "none")

    with pytest.raises(pytest.skip.Exception, match=r"expected Node\.js with npm"):
        matrix.command_of("node")
    with pytest.raises(pytest.skip.Exception, match="make sdk-clients"):
        matrix.command_of("litellm_client")
