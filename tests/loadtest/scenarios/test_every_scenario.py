"""What holds for every scenario: reproducible, closed in its kinds, well described, and never warm by accident."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.scenarios import scenarios
from loadtest.scenarios.base import Scenario
from loadtest.scenarios.digest import bodies_digest
from loadtest.scenarios.options import make, option_values, options_of
from loadtest.target import UsageError
from tests.loadtest.scenarios.sessions import CONTEXT, MOONCAKE, body_of, contents, made, requests_of

NAMES = tuple(scenarios())
SHARING = ("shared-prompt", "rag", "replay")
"""Those whose requests are meant to begin alike within a run."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options(name: str, tmp_path: Path) -> dict[str, str]:
    if name != "replay":
        return {}
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    return {"file": str(tmp_path / "trace.jsonl")}


@pytest.fixture
def scenario(name: str, options: dict[str, str]) -> Scenario:
    return made(name, **options)


def test_the_same_seed_salt_and_number_give_the_same_bytes(
    scenario: Scenario, name: str, options: dict[str, str]
) -> None:
    """Also in another process; another number, seed or salt gives others."""
    again = made(name, **options)
    salted = made(name, replace(CONTEXT, salt="run-2"), **options)
    first = requests_of(scenario, 5)

    assert first == requests_of(again, 5)
    for other in (requests_of(scenario, 6), requests_of(scenario, 5, seed=2), requests_of(salted, 5)):
        assert [r.body for r in first] != [r.body for r in other]


def test_requests_are_what_the_scenario_says(scenario: Scenario) -> None:
    """Kinds from its closed set, JSON for the served model, streams with usage."""
    found = [request for number in range(20) for request in requests_of(scenario, number)]

    assert {r.kind for r in found} <= set(scenario.kinds)
    for request in found:
        body = body_of(request)
        assert "m" == body["model"]
        assert request.stream is bool(body.get("stream", False))
        if request.stream:
            assert {"include_usage": True} == body["stream_options"]


def test_nothing_is_warm_by_accident(scenario: Scenario, name: str, options: dict[str, str]) -> None:
    """No two sessions begin alike unless that is the point, and then not alike in two runs."""
    firsts = [contents(requests_of(scenario, number)[0])[0] for number in range(200)]
    beginnings = {" ".join(text.split()[:6]) for text in firsts}
    other = contents(requests_of(made(name, replace(CONTEXT, salt="run-2"), **options))[0])[0]

    if name in SHARING:
        assert len(beginnings) < len(firsts)
    else:
        assert len(beginnings) == len(firsts)
    assert " ".join(other.split()[:6]) not in beginnings


def test_the_digest_tells_loads_apart_and_runs_alike(scenario: Scenario, name: str, options: dict[str, str]) -> None:
    """The salt is not in it, the seed is."""
    salted = made(name, replace(CONTEXT, salt="run-2"), **options)

    assert bodies_digest(scenario, 1) == bodies_digest(salted, 1)
    assert bodies_digest(scenario, 1) != bodies_digest(scenario, 2)


def test_it_is_described_in_one_line_with_defaults_that_can_run(scenario: Scenario, name: str) -> None:
    """For the list of scenarios; a closed loop has users, an open one a rate."""
    assert name == scenario.name
    assert scenario.description
    assert "\n" not in scenario.description
    assert len(scenario.description) < 80
    defaults = scenario.defaults
    assert (defaults.users is None) != (defaults.rate is None)
    assert (defaults.arrivals == "closed") == (defaults.rate is None)
    assert len(set(scenario.kinds)) == len(scenario.kinds)


def test_options_can_be_read_as_they_are_shown(scenario: Scenario, name: str) -> None:
    """Settings of a stored result make the same scenario again; what nobody set is empty."""
    shown = option_values(scenario)

    assert [option.name for option in options_of(type(scenario))] == list(shown)
    assert scenario == make(scenarios()[name], CONTEXT, shown)
    json.dumps(shown)


def test_lengths_that_do_not_fit_are_refused_before_anything_is_sent(name: str, options: dict[str, str]) -> None:
    """A trace is cut to what fits instead: its lengths are nobody's choice."""
    tiny = replace(CONTEXT, max_model_len=40)
    if name == "replay":
        scenario = made(name, tiny, **options)
        assert len(contents(requests_of(scenario)[0])[0].split()) < 40
        return

    with pytest.raises(UsageError, match=r"expected prompt and answer within m's context of 40 tokens, found up to"):
        made(name, tiny, **options)


def test_without_vllms_own_parameters_none_is_sent(name: str, options: dict[str, str]) -> None:
    """OpenAI's own API refuses unknown fields."""
    scenario = made(name, replace(CONTEXT, forces_length=False), **options)

    for request in requests_of(scenario):
        assert not {"ignore_eos", "min_tokens"} & set(body_of(request))
