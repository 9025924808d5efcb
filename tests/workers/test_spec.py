"""From the configuration to the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.workers.placement import Machine
from gateway.workers.spec import Variant, WorkerSpec, specs_from_settings

CONFIGURATION = {
    "models": {
        "org/big": {"model": "hub/big", "replicas": 2, "engine": "new", "workers": [{"url": "http://h:1"}]},
        "only-static": {"workers": [{"url": "http://h:2"}, {"url": "http://h:3"}]},
        "none": {"model": "hub/none", "replicas": 0},
    },
    "engines": {"new": {"command": ["{python}", "-m", "serve", "{model}"]}},
    "drain_timeout_s": 7,
}


@dataclass(frozen=True)
class Environment:
    python: Path
    variant: Variant


def specs(configuration: object = CONFIGURATION) -> tuple[WorkerSpec, ...]:
    secrets: Iterator[int] = count()
    return specs_from_settings(
        Settings.model_validate(configuration),
        {"new": Environment(Path("/new/python"), "cpu"), "default": Environment(Path("/old/python"), "cpu")},
        machine=Machine(cpus=(0, 1)),
        log_dir=Path("/logs"),
        runtime_dir=Path("/run"),
        new_secret=lambda: f"secret-{next(secrets)}",
    )


def test_workers_come_in_the_order_of_the_configuration() -> None:
    """Launched ones of a model before its static ones; none of a model with no replicas."""
    assert [
        "org-big-0", "org-big-1", "org-big-static-0", "only-static-static-0", "only-static-static-1",
    ] == [spec.name for spec in specs()]  # fmt: skip


def test_a_launched_worker_has_all_it_needs() -> None:
    """Public name, source, interpreter and template of its engine, its cores, its own key."""
    first, second = specs()[:2]
    assert ("org/big", "hub/big", Path("/new/python")) == (first.model, first.source, first.engine_python)
    assert ("{python}", "-m", "serve", "{model}") == first.engine_command
    assert ((0,), (1,)) == (first.cpus, second.cpus)
    assert {"secret-0", "secret-1"} == {first.api_key, second.api_key}
    assert 7 == first.drain_timeout_s
    assert first.static is None


def test_the_default_engine_needs_no_entry() -> None:
    """Its command is the schema's default."""
    only = specs({"models": {"m": {"model": "hub/m"}}})[0]
    assert ("{python}", "-m", "vllm.entrypoints.openai.api_server") == only.engine_command
    assert Path("/old/python") == only.engine_python


def test_a_static_worker_has_no_secret_of_ours() -> None:
    """Its key is the operator's, read when it is used."""
    static = specs()[2]
    assert static.static is not None
    assert static.api_key is None


def test_no_secret_is_printed() -> None:
    """repr() ends up in logs."""
    assert "secret-" not in repr(specs())


@pytest.mark.parametrize(
    ("model", "expected"),
    [("org/m", "org-m-0"), ("ä b", "b-0"), ("///", "model-0"), ("a.b_c", "a.b_c-0"), ("..", "model-0")],
)
def test_names_are_fit_for_files(model: str, expected: str) -> None:
    """No separator, no hidden file, no foreign letter."""
    assert [expected] == [spec.name for spec in specs({"models": {model: {"model": "hub/m"}}})]


def test_names_are_unique_even_when_models_look_alike() -> None:
    """`a/b` and `a-b` are different models."""
    configuration = {"models": {"a/b": {"model": "x", "replicas": 2}, "a-b": {"model": "y", "replicas": 2}}}
    names = [spec.name for spec in specs(configuration)]
    assert 4 == len(set(names))


@pytest.mark.parametrize("names", [("a", "a-static"), ("a-static", "a")])
def test_a_model_called_like_another_one_s_static_workers_has_names_of_its_own(names: tuple[str, str]) -> None:
    """The static workers of `a` are `a-static-0` and so on; a second worker of a name would replace the first."""
    both = {"model": "x", "replicas": 2, "workers": [{"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2"}]}
    found = [spec.name for spec in specs({"models": dict.fromkeys(names, both)})]

    assert 8 == len(set(found))
