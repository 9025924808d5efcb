"""What the configuration says of traces, and what is wrong with it, told with the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import settings_from_mapping
from gateway.config.settings import Settings
from gateway.errors import ConfigurationProblems

MODELS = {"m": {"workers": [{"url": "http://127.0.0.1:9000"}]}}


def settings(folder: Path, **traces: object) -> Settings:
    return settings_from_mapping({"models": MODELS, "traces": traces}, folder)


def test_traces_are_off_unless_an_endpoint_is_set(tmp_path: Path) -> None:
    """An empty section is no section."""
    assert settings(tmp_path).traces.endpoint is None


def test_the_file_of_headers_is_taken_from_the_configuration_s_folder(tmp_path: Path) -> None:
    """As every other relative path is; every process reads the same file."""
    (tmp_path / "headers").write_text("x-key: k\n")

    found = settings(tmp_path, endpoint="https://collector.example/otlp", headers_file="headers")

    assert tmp_path / "headers" == found.traces.headers_file


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ({"endpoint": "collector:4317"}, r"traces.endpoint: expected the URL of an OTLP collector"),
        ({"endpoint": "http://user:password@c"}, r"traces.endpoint: expected the URL"),
        ({"endpoint": "http://c", "headers_file": "nowhere"}, r"traces.headers_file: expected a readable file"),
        ({"endpoint": "http://c", "sample_ratio": 1.5}, r"traces.sample_ratio"),
        ({"sample_ratio": 0.5}, r"traces.sample_ratio: has no effect without traces.endpoint"),
    ],
)
def test_what_cannot_work_is_told(tmp_path: Path, traces: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationProblems, match=message):
        settings(tmp_path, **traces)
