"""docs/loadtest.md names every scenario and option with the defaults that they have, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtest.cli import build_parser
from loadtest.datasets import FORMATS
from loadtest.offline.cli import build_parser as build_offline_parser
from loadtest.scenarios import scenarios
from loadtest.scenarios.options import options_of
from tests.loadtest.scenarios.sessions import CONTEXT, contents, requests_of

GUIDE = (Path(__file__).parents[3] / "docs" / "loadtest.md").read_text()


@pytest.mark.parametrize("name", scenarios())
def test_a_scenario_has_its_section_with_all_options(name: str) -> None:
    """One row for each, default and meaning as `--list` shows them; none that is gone."""
    scenario = scenarios()[name]
    section = re.split(r"^##+ ", GUIDE.partition(f"\n### {name}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    defaults = scenario.defaults
    load = f"{defaults.users} users" if defaults.rate is None else f"{defaults.rate:g}/s {defaults.arrivals}"

    assert f"| [`{name}`](#{name}) | {scenario.description} | {load}, {defaults.duration_s:g} s |" in GUIDE
    assert rows == [
        f"| `{option.name}` | {f'`{option.default}`' if option.default else '–'} | {option.help} |"
        for option in options_of(scenario)
    ]


def test_every_format_is_described() -> None:
    """As it is called in --option format."""
    assert [f"| `{name}` |" in GUIDE for name in FORMATS] == [True] * len(FORMATS)


def test_options_of_the_command_line_exist() -> None:
    """What the guide says can be typed, of the load test or the offline benchmark; and of vLLM."""
    parsers = (build_parser(), build_offline_parser())
    known = {flag for parser in parsers for action in parser._actions for flag in action.option_strings}
    others = {"--enable-auto-tool-choice", "--enable-prompt-tokens-details", "--tool-call-parser"}

    assert set(re.findall(r"--[a-z][a-z-]+", GUIDE)) <= known | others


def test_the_scenario_to_write_oneself_works() -> None:
    """The example is run as it stands."""
    (code,) = re.findall(r"```python\n(@dataclass.*?)```", GUIDE, re.DOTALL)
    names: dict[str, object] = {"__name__": __name__}
    imports = """
import random
from dataclasses import dataclass, field
from typing import ClassVar
from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import chat_request, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import about
"""
    exec(compile(imports + code, "docs/loadtest.md", "exec", dont_inherit=True), names)
    haiku: type = names["Haiku"]  # type: ignore[assignment]

    assert contents(requests_of(haiku(CONTEXT))[0])[0].endswith(": make a haiku of it")
