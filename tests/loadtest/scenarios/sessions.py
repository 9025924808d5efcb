"""Driving a scenario's sessions without a network."""

from __future__ import annotations

import json
from typing import Any

from loadtest.outcomes import Outcome
from loadtest.scenarios import scenarios
from loadtest.scenarios.base import Answer, Context, Request, Scenario, session_rng
from loadtest.scenarios.options import make
from loadtest.scenarios.text import TokenScale

SCALE = TokenScale()
CONTEXT = Context("m", SCALE, salt="run-1", max_model_len=8192, forces_length=True)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 500, "input_length": 1040, "output_length": 6, "hash_ids": [0, 1, 3]}\n'
)


def made(name: str, context: Context = CONTEXT, **options: str) -> Scenario:
    """A scenario by name, with options as they are typed."""
    return make(scenarios()[name], context, options)


def requests_of(
    scenario: Scenario, number: int = 0, *, seed: int = 1, text: str = "Very well.", outcome: Outcome = Outcome.OK
) -> list[Request]:
    """All requests of one session, each answered the same way."""
    session = scenario.session(session_rng(seed, number), number)
    found = []
    try:
        request = next(session)
        while True:
            found.append(request)
            request = session.send(Answer(text, outcome))
    except StopIteration:
        return found


def body_of(request: Request) -> dict[str, Any]:
    """The JSON of a request."""
    value: dict[str, Any] = json.loads(request.body)
    return value


def contents(request: Request) -> list[str]:
    """The texts of a chat's messages, or of an embedding's inputs."""
    body = body_of(request)
    return [str(m["content"]) for m in body["messages"]] if "messages" in body else body["input"]
