"""Scenarios: what clients send, without how it is sent or timed. `scenarios()` names them all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from loadtest.scenarios.base import Scenario
from loadtest.scenarios.chat import Chat

_ALL: tuple[type[Scenario], ...] = (Chat,)


def scenarios() -> Mapping[str, type[Scenario]]:
    """Every scenario by name, in the order they are listed in."""
    return MappingProxyType({scenario.name: scenario for scenario in _ALL})
