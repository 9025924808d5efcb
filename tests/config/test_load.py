"""Loading: what is right is accepted as written, and nothing but a configuration error ever comes out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.checks import check
from gateway.config.document import dotted, read
from gateway.config.load import DiskFiles, explain, load_settings, settings_from_mapping
from gateway.config.settings import Settings
from gateway.errors import ConfigurationError, ConfigurationProblems

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid(example: Path) -> None:
    """What people copy works, as far as this machine can tell."""
    assert [] == [str(problem) for problem in explain(example) if not problem.key.endswith(".python")]


def test_the_fleet_example_has_a_launched_and_a_static_model() -> None:
    """The example shows both."""
    fleet = load_settings(EXAMPLES / "fleet.yaml")

    assert {"llama": (2, 0), "qwen": (0, 1)} == {
        name: (model.launched, len(model.workers)) for name, model in fleet.models.items()
    }


def test_relative_paths_start_from_the_file_s_folder_and_links_stay(tmp_path: Path) -> None:
    """An interpreter of a virtual environment is a link whose target is another environment's."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(sys.executable)
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "weights").mkdir()
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "engines: {default: {python: venv/python}}\n"
        "models:\n"
        "  a: {model: ./weights}\n"
        "  b: {workers: [{url: 'https://h', api_key_file: key}]}\n"
        "  c: {model: org/name}\n"
    )

    loaded = load_settings(file)

    assert tmp_path / "venv" / "python" == loaded.engines["default"].python
    assert str(tmp_path / "weights") == loaded.models["a"].model
    assert tmp_path / "key" == loaded.models["b"].workers[0].api_key_file
    assert "org/name" == loaded.models["c"].model


def test_settings_survive_the_way_to_a_gateway_process() -> None:
    """They travel as JSON (`messages.Configure`) and are the same on the other side."""
    fleet = load_settings(EXAMPLES / "fleet.yaml")

    assert fleet == Settings.model_validate_json(fleet.model_dump_json())


def test_yaml_s_surprises_are_taken_for_what_people_mean(tmp_path: Path) -> None:
    """Keys are always text, `1:30` is no number, octal-looking numbers are decimal, dates are text."""
    text = "on: {a: 1:30, b: 010, c: 0x10, d: 2026-01-31, e: yes, f: 1_000, g: 1.5, h: ~, i: '1'}\n1.0: x\n"

    document = read(text)

    assert [] == document.findings
    expected = {"a": "1:30", "b": 10, "c": 16, "d": "2026-01-31", "e": True, "f": 1000, "g": 1.5, "h": None, "i": "1"}
    assert {"on": expected, "1.0": "x"} == document.data


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_is_data_or_findings(text: str) -> None:
    """The reader never raises."""
    document = read(text)

    assert document.readable or document.findings


keys = st.sampled_from(
    [*Settings.model_fields, "m", "launch", "workers", "url", "python", "aliases", "timeouts", "port"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(keys, values, max_size=5))
@settings(max_examples=200, deadline=None)
def test_any_mapping_is_settings_or_problems_with_places(data: dict[str, Any]) -> None:
    """The checks tolerate every shape; nothing but a configuration error comes out."""
    document = read(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    assert document.readable or not data

    problems: tuple[ConfigurationError, ...] = ()
    try:
        settings_from_mapping(document.data, Path("/"))
    except ConfigurationProblems as exc:
        problems = exc.problems

    assert all(problem.message for problem in problems)
    assert problems or document.data["models"]


RULE_BREAKERS: list[dict[str, Any]] = [
    {"models": {"m": {}}},
    {"models": {"m": {"model": "x", "aliases": ["m"]}}},
    {"models": {"": {"model": "x"}}},
    {"models": {"m": {"model": "x", "engine": "other"}}},
    {"models": {"m": {"workers": [{"url": "http://h:1", "api_key": "a", "api_key_file": __file__}]}}},
]


@pytest.mark.parametrize("data", RULE_BREAKERS)
def test_every_rule_of_the_schema_is_told_once_with_a_better_place(data: dict[str, Any]) -> None:
    """The schema's own rules guard settings made in code; in a file the check's finding replaces theirs."""
    with pytest.raises(ValueError, match="validation error"):
        Settings.model_validate(data)

    with pytest.raises(ConfigurationProblems) as caught:
        settings_from_mapping(data, Path("/"))

    assert 1 == len(caught.value.problems)
    assert [caught.value.key] == [dotted(finding.path) for finding in check(data, DiskFiles())]


def test_wrong_data_is_told_with_the_file_s_keys(tmp_path: Path) -> None:
    """`gateway up MODEL`: no file, no line, but the key that would be wrong in one."""
    data = {"models": {"model": {"model": "/no/such/model"}}, "listen": {"port": 0}}

    with pytest.raises(ConfigurationError) as caught:
        settings_from_mapping(data, tmp_path)

    assert [
        "models.model.model: expected a folder with a model, found none at /no/such/model",
        "listen.port: expected at least 1, found 0",
    ] == str(caught.value).splitlines()


def test_the_caller_s_data_is_left_alone(tmp_path: Path) -> None:
    """Paths are made absolute in a copy."""
    (tmp_path / "weights").mkdir()
    data = {"models": {"m": {"model": "./weights"}}}

    settings_from_mapping(data, tmp_path)

    assert {"models": {"m": {"model": "./weights"}}} == data
