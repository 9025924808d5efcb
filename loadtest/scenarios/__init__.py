"""Scenarios: what clients send, without how it is sent or timed. `scenarios()` names them all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from loadtest.scenarios.base import Scenario
from loadtest.scenarios.burst import Burst
from loadtest.scenarios.cancel import Cancel
from loadtest.scenarios.chat import Chat
from loadtest.scenarios.embeddings import Embeddings
from loadtest.scenarios.long_prompt import LongPrompt
from loadtest.scenarios.multi_turn import MultiTurn
from loadtest.scenarios.overload import Overload
from loadtest.scenarios.rag import Rag
from loadtest.scenarios.replay import Replay
from loadtest.scenarios.shared_prompt import SharedPrompt
from loadtest.scenarios.soak import Soak
from loadtest.scenarios.tenants import Tenants
from loadtest.scenarios.tools import Tools

_ALL: tuple[type[Scenario], ...] = (
    Chat,
    LongPrompt,
    SharedPrompt,
    MultiTurn,
    Rag,
    Tools,
    Embeddings,
    Burst,
    Soak,
    Overload,
    Cancel,
    Tenants,
    Replay,
)


def scenarios() -> Mapping[str, type[Scenario]]:
    """Every scenario by name, in the order they are listed in."""
    return MappingProxyType({scenario.name: scenario for scenario in _ALL})
